//! `docs/metrics.md` ends with a table of every metric: this test compares it with the catalogue, or writes it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use weir_telemetry::catalogue::{BUDGET, Definition, LABELS, SECTIONS, Series};

const MARK: &str = "do not edit below. -->\n";

fn reference() -> String {
    let mut text = String::new();
    let series = SECTIONS.iter().flat_map(|(_, metrics)| *metrics).filter_map(|metric| match metric.series {
        Series::Most(most) => Some(most),
        Series::PerService => None,
    });
    let sum: u32 = series.sum();
    writeln!(
        text,
        "\nAn agent has {sum} series at most, of {BUDGET} that it may have, and those by Service that were asked for."
    )
    .unwrap();
    for (section, metrics) in SECTIONS {
        write!(
            text,
            "\n### {section}\n\n| metric | kind | labels | series | meaning |\n| --- | --- | --- | --- | --- |\n"
        )
        .unwrap();
        for Definition { name, kind, labels, series, help } in *metrics {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            let series = match series {
                Series::Most(most) => most.to_string(),
                Series::PerService => "by Service".to_owned(),
            };
            let (kind, labels) = (kind.name(), labels.join(", "));
            writeln!(text, "| `{name}` | {kind} | {labels} | {series} | {help} |").unwrap();
        }
    }
    write!(text, "\n### Labels\n\n| label | meaning |\n| --- | --- |\n").unwrap();
    for label in LABELS {
        writeln!(text, "| `{}` | {} |", label.key, label.meaning).unwrap();
    }
    text
}

#[test]
fn the_reference_in_the_documentation_is_the_catalogue() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let document = fs::read_to_string(&path).unwrap();
    let (prose, written) = document.split_once(MARK).unwrap();
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{prose}{MARK}{}", reference())).unwrap();
        return;
    }
    assert!(
        written == reference(),
        "docs/metrics.md is out of date: WEIR_WRITE_DOCS=1 cargo test -p weir-telemetry --test it reference"
    );
}
