//! One set of rows, every form of output. Tables are for people; JSON and YAML carry a version for scripts.

use std::io::{self, IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::args::{Color, Format, Global};

/// Version of the JSON and YAML documents.
pub(crate) const API_VERSION: &str = "weir.dev/v1alpha1";

/// Kinds of documents. `docs/cli.md` lists them, and a test compares.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(clap::ValueEnum))]
pub(crate) enum Kind {
    CleanupList,
    ConfigCheck,
    Configuration,
    Diagnosis,
    EndpointList,
    Explanation,
    FlowList,
    MapEntryList,
    MapList,
    MigrationStepList,
    MountList,
    NodeAnswerList,
    ReasonList,
    ServiceList,
    Status,
    Trace,
    Version,
    Weights,
}

/// What stands in a column that has no value.
pub(crate) const NONE: &str = "<none>";

/// How a row should look to people.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Tone {
    /// As any other.
    Plain,
    /// On its way out.
    Faded,
    /// Good news, where that is worth a colour.
    Good,
    /// Worth a look.
    Alert,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Faded => Style::new().dimmed(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Alert => AnsiColor::Yellow.on_default(),
        }
    }
}

/// A line of a table, and an item of a document.
pub(crate) trait Row: Serialize {
    /// Kind of the document that holds such rows.
    const KIND: Kind;
    /// Column names.
    fn headers(wide: bool) -> Vec<&'static str>;
    /// As many cells as there are column names; an empty one is shown as `<none>`.
    fn cells(&self, wide: bool) -> Vec<String>;
    /// Kind and name, for `-o name`.
    fn name(&self) -> String;
    /// How it should look.
    fn tone(&self) -> Tone {
        Tone::Plain
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a, T: Serialize> {
    api_version: &'static str,
    kind: Kind,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Serialize)]
struct Items<'a, R> {
    items: &'a [R],
}

/// Where answers go, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    format: Format,
    headers: bool,
    color: ColorChoice,
    /// One JSON document a line, YAML documents with a separator.
    stream: bool,
}

impl Output {
    /// As the options say.
    pub(crate) fn new(global: &Global) -> Self {
        let color = match global.color {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::AlwaysAnsi,
            Color::Never => ColorChoice::Never,
        };
        Self { format: global.output, headers: !global.no_headers, color, stream: false }
    }

    /// For a sequence of answers.
    pub(crate) const fn streaming(self) -> Self {
        Self { stream: true, ..self }
    }

    /// Whether the answer is for people.
    pub(crate) const fn is_table(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// Whether the answer is a document for programs.
    pub(crate) const fn is_document(&self) -> bool {
        matches!(self.format, Format::Json | Format::Yaml)
    }

    /// Whether the answer is JSON.
    pub(crate) const fn is_json(&self) -> bool {
        matches!(self.format, Format::Json)
    }

    /// Whether answers can replace one another on the screen.
    pub(crate) fn is_screen(&self) -> bool {
        self.is_table() && io::stdout().is_terminal()
    }

    /// Whether there may be colours on the screen.
    pub(crate) fn is_colored(&self) -> bool {
        match self.color {
            ColorChoice::Auto => AutoStream::choice(&io::stdout()) != ColorChoice::Never,
            ColorChoice::AlwaysAnsi | ColorChoice::Always => true,
            ColorChoice::Never => false,
        }
    }

    /// A list as text.
    pub(crate) fn list<R: Row>(&self, rows: &[R]) -> Result<String> {
        self.rows(rows, R::KIND, &Items { items: rows })
    }

    /// Rows as text where people read it, else the object that they were made from.
    pub(crate) fn rows<R: Row, T: Serialize>(&self, rows: &[R], kind: Kind, object: &T) -> Result<String> {
        match self.format {
            Format::Table => Ok(self.table(rows, false)),
            Format::Wide => Ok(self.table(rows, true)),
            Format::Name => Ok(names(rows)),
            Format::Json | Format::Yaml => self.document(kind, object),
        }
    }

    /// An object as a document. Only for JSON and YAML; people get JSON too.
    pub(crate) fn document<T: Serialize>(&self, kind: Kind, content: &T) -> Result<String> {
        let document = Document { api_version: API_VERSION, kind, content };
        let text = match (self.format, self.stream) {
            (Format::Yaml, stream) => {
                let text = serde_saphyr::to_string(&document).context("cannot write YAML")?;
                return Ok(if stream { format!("---\n{text}") } else { text });
            }
            (Format::Table | Format::Wide | Format::Name | Format::Json, true) => serde_json::to_string(&document),
            (Format::Table | Format::Wide | Format::Name | Format::Json, false) => {
                serde_json::to_string_pretty(&document)
            }
        };
        Ok(text.context("cannot write JSON")? + "\n")
    }

    fn table<R: Row>(&self, rows: &[R], wide: bool) -> String {
        if rows.is_empty() {
            return String::new();
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        let mut tones = Vec::with_capacity(rows.len() + 1);
        if self.headers {
            table.set_header(R::headers(wide));
            tones.push(Tone::Plain);
        }
        for row in rows {
            table.add_row(row.cells(wide).into_iter().map(|cell| in_one_line(&cell)));
            tones.push(row.tone());
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 3));
        }
        let mut text = String::new();
        for (line, tone) in table.lines().zip(tones) {
            let style = tone.style();
            text.push_str(&format!("{style}{}{style:#}\n", line.trim_end()));
        }
        text
    }

    /// Writes to stdout.
    pub(crate) fn print(&self, text: &str) -> Result<()> {
        let mut stdout = AutoStream::new(io::stdout(), self.color).lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()?;
        Ok(())
    }
}

/// A cell of a table, whose rows are lines. Of a long text, as the kernel's about a program that it refuses, the beginning and the end say most.
fn in_one_line(cell: &str) -> String {
    let lines: Vec<_> = cell.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines[..] {
        [] => NONE.to_owned(),
        [line] => line.to_owned(),
        [first, last] => format!("{first}; {last}"),
        [first, .., last] => format!("{first} […] {last}"),
    }
}

fn names<R: Row>(rows: &[R]) -> String {
    let mut names: Vec<_> = rows.iter().map(|row| row.name() + "\n").collect();
    // Rows of one object are neighbours.
    names.dedup();
    names.concat()
}

/// `one,two`, or nothing.
pub(crate) fn joined<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Output without colour in a form.
    pub(crate) const fn plain(format: Format) -> Output {
        Output { format, headers: true, color: ColorChoice::Never, stream: false }
    }

    #[derive(Serialize)]
    struct Fruit {
        name: &'static str,
        ripe: bool,
    }

    impl Row for Fruit {
        const KIND: Kind = Kind::ServiceList;

        fn headers(wide: bool) -> Vec<&'static str> {
            if wide { vec!["NAME", "RIPE"] } else { vec!["NAME"] }
        }

        fn cells(&self, wide: bool) -> Vec<String> {
            let mut cells = vec![self.name.to_owned()];
            cells.extend(wide.then(|| self.ripe.to_string()));
            cells
        }

        fn name(&self) -> String {
            format!("fruit/{}", self.name)
        }

        fn tone(&self) -> Tone {
            if self.ripe { Tone::Alert } else { Tone::Plain }
        }
    }

    const FRUIT: [Fruit; 3] =
        [Fruit { name: "plum", ripe: true }, Fruit { name: "plum", ripe: false }, Fruit { name: "", ripe: false }];

    #[test]
    fn columns_are_aligned_without_borders_and_nothing_is_none() {
        insta::assert_snapshot!(anstream::adapter::strip_str(&plain(Format::Wide).list(&FRUIT).unwrap()), @r"
        NAME     RIPE
        plum     true
        plum     false
        <none>   false
        ");
        let headless = Output { headers: false, ..plain(Format::Table) };
        insta::assert_snapshot!(anstream::adapter::strip_str(&headless.list(&FRUIT).unwrap()), @r"
        plum
        plum
        <none>
        ");
    }

    #[test]
    fn a_long_text_takes_one_line_and_hides_no_row() {
        let names = ["refused:\n0: R1\n1: R2\nno such map\n", "plum", "a\nb", ""];
        let rows = names.map(|name| Fruit { name, ripe: false });
        insta::assert_snapshot!(anstream::adapter::strip_str(&plain(Format::Table).list(&rows).unwrap()), @r"
        NAME
        refused: […] no such map
        plum
        a; b
        <none>
        ");
    }

    #[test]
    fn a_tone_colours_the_whole_line() {
        let table = plain(Format::Table).list(&FRUIT[..1]).unwrap();
        assert_eq!(table, "NAME\n\u{1b}[33mplum\u{1b}[0m\n");
    }

    #[test]
    fn documents_carry_version_and_kind() {
        insta::assert_snapshot!(plain(Format::Json).list(&FRUIT[..1]).unwrap(), @r#"
        {
          "apiVersion": "weir.dev/v1alpha1",
          "kind": "ServiceList",
          "items": [
            {
              "name": "plum",
              "ripe": true
            }
          ]
        }
        "#);
        insta::assert_snapshot!(plain(Format::Yaml).list(&FRUIT[..1]).unwrap(), @r"
        apiVersion: weir.dev/v1alpha1
        kind: ServiceList
        items:
        - name: plum
          ripe: true
        ");
    }

    #[test]
    fn a_stream_has_one_json_document_a_line() {
        let text = plain(Format::Json).streaming().list(&FRUIT).unwrap();
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn names_say_each_object_once() {
        assert_eq!(plain(Format::Name).list(&FRUIT).unwrap(), "fruit/plum\nfruit/\n");
    }

    #[test]
    fn an_empty_table_has_no_headers() {
        assert_eq!(plain(Format::Table).list::<Fruit>(&[]).unwrap(), "");
    }
}
