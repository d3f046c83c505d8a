//! The manual page, from the same definition as help.

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::Options;

/// Daemons of administrators.
const SECTION: &str = "8";

/// For those who make packages.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ManOptions {
    /// Write the manual page and do nothing else
    #[arg(long = "man", hide = true)]
    pub(crate) wanted: bool,
}

const EXIT_STATUS: [(&str, &str); 2] = [
    ("0", "It was told to stop. Traffic goes on through what is pinned."),
    ("2", "Wrong options, or an error that it cannot go on from; the log says which. Traffic goes on."),
];

const SIGNALS: [(&str, &str); 2] = [
    ("SIGTERM, SIGINT", "Stops it."),
    ("SIGHUP", "Has it read its files again, which it does by itself when they change."),
];

const FILES: [(&str, &str); 2] = [
    (
        "/sys/fs/bpf/weir",
        "Maps, programs and links, on a BPF file system. They outlive the agent; weir-cleanup(8) removes them.",
    ),
    ("/run/weir/agent.sock", "Where it answers weir(8) of root."),
];

/// Writes the page to stdout.
pub(crate) fn print() -> Result<()> {
    let mut text = Vec::new();
    render(&mut text).and_then(|()| io::stdout().write_all(&text)).context("cannot write the manual page")
}

fn render(text: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(Options::command()).section(SECTION).manual("Weir");
    man.render_title(text)?;
    man.render_name_section(text)?;
    man.render_synopsis_section(text)?;
    man.render_description_section(text)?;
    man.render_options_section(text)?;
    let mut end = Roff::new();
    for (heading, entries) in [("EXIT STATUS", &EXIT_STATUS), ("SIGNALS", &SIGNALS), ("FILES", &FILES)] {
        end.control("SH", [heading]);
        for (term, what) in entries {
            end.control("TP", []).text([bold(*term)]).text([roman(*what)]);
        }
    }
    end.control("SH", ["SEE ALSO"]).text([bold("weir"), roman("(8)")]);
    end.to_writer(text)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_page_has_every_option_and_groff_finds_nothing_to_complain_about() {
        let mut text = Vec::new();
        render(&mut text).unwrap();
        let page = String::from_utf8(text.clone()).unwrap();
        for option in Options::command().get_opts().filter(|option| !option.is_hide_set()) {
            let name = option.get_long().unwrap().replace('-', "\\-");
            assert!(page.contains(&format!("\\-\\-{name}")), "no --{name} in\n{page}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir-agent.8");
        std::fs::write(&path, text).unwrap();
        let Ok(checked) = Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&path).output() else {
            eprintln!("SKIPPED: the manual page: there is no groff; apt-get install groff-base");
            return;
        };
        assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
    }
}
