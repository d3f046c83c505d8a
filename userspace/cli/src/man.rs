//! Manual pages, from the same definition as help: a page for the program, and one for each command.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Tools and daemons of administrators.
const SECTION: &str = "8";

/// What each number that a command ends with means, as in its help.
const EXIT_STATUS: [(&str, &str); 5] = [
    ("0", "The command did what it was asked. A reader that goes away is no error."),
    ("1", "The answer is no: degraded, or no such object."),
    ("2", "Wrong usage, or an error while it ran."),
    ("3", "Not allowed: run it as root on the node."),
    ("4", "Nothing is pinned on this node, or no weir-agent answers where only it knows."),
];

const FILES: [(&str, &str); 2] = [
    ("/sys/fs/bpf/weir", "Maps, programs and links, on a BPF file system."),
    ("/run/weir/agent.sock", "Where weir-agent answers root."),
];

/// Writes the pages of a program and of its commands into a directory that is there.
pub(crate) fn write(program: &Command, directory: &Path) -> Result<()> {
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    let mut pages = vec![program.clone()];
    collect(&program, &mut pages);
    let names: Vec<String> = pages.iter().map(name).collect();
    for page in &pages {
        let path = directory.join(format!("{}.{SECTION}", name(page)));
        let cannot = || format!("cannot write {}", path.display());
        let mut text = Vec::new();
        render(page, &names, &mut text).with_context(cannot)?;
        fs::write(&path, text).with_context(cannot)?;
    }
    Ok(())
}

fn collect(parent: &Command, pages: &mut Vec<Command>) {
    for child in parent.get_subcommands().filter(|child| !child.is_hide_set()) {
        pages.push(child.clone());
        collect(child, pages);
    }
}

/// `weir-map-list`.
fn name(page: &Command) -> String {
    page.get_display_name().unwrap_or_else(|| page.get_name()).to_owned()
}

fn render(page: &Command, names: &[String], text: &mut Vec<u8>) -> std::io::Result<()> {
    let own = name(page);
    let man =
        Man::new(page.clone()).section(SECTION).manual("Weir").source(format!("weir {}", env!("CARGO_PKG_VERSION")));
    man.render_title(text)?;
    man.render_name_section(text)?;
    man.render_synopsis_section(text)?;
    man.render_description_section(text)?;
    man.render_options_section(text)?;
    if page.get_subcommands().any(|child| !child.is_hide_set()) {
        man.render_subcommands_section(text)?;
    }
    // What follows help is examples, but for the program itself.
    if own != "weir" && page.get_after_help().is_some() {
        man.render_extra_section(text)?;
    }
    let mut end = Roff::new();
    listed(&mut end, "EXIT STATUS", &EXIT_STATUS);
    listed(&mut end, "FILES", &FILES);
    let others = names.iter().filter(|name| **name != own && (own == "weir" || *name == "weir"));
    let mut others: Vec<_> = others.flat_map(|name| [bold(name.as_str()), roman(format!("({SECTION}), "))]).collect();
    others.extend([bold("weir-agent"), roman(format!("({SECTION})"))]);
    end.control("SH", ["SEE ALSO"]).text(others);
    end.to_writer(text)?;
    text.flush()
}

fn listed(roff: &mut Roff, heading: &str, entries: &[(&str, &str)]) {
    roff.control("SH", [heading]);
    for (term, what) in entries {
        roff.control("TP", []).text([bold(*term)]).text([roman(*what)]);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use clap::CommandFactory;

    use super::*;
    use crate::args::{Cli, EXIT_CODES};

    fn pages() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        write(&Cli::command(), directory.path()).unwrap();
        directory
    }

    #[test]
    fn every_command_has_a_page_with_its_exit_codes_and_the_way_to_the_others() {
        let directory = pages();
        let mut program = Cli::command();
        program.build();
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            let path = directory.path().join(format!("weir-{}.8", command.get_name()));
            let page = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            for part in [".SH NAME", ".SH SYNOPSIS", ".SH \"EXIT STATUS\"", ".SH FILES", ".SH \"SEE ALSO\""] {
                assert!(page.contains(part), "{path:?} has no {part}:\n{page}");
            }
        }
        let page = fs::read_to_string(directory.path().join("weir.8")).unwrap();
        assert!(page.contains("weir\\-services") && page.contains("weir\\-agent"), "{page}");
        assert!(directory.path().join("weir-map-dump.8").exists());
        assert!(!directory.path().join("weir-man.8").exists());
    }

    #[test]
    fn help_and_manual_have_the_same_exit_codes() {
        let of_help: Vec<char> = EXIT_CODES.lines().skip(1).filter_map(|line| line.trim().chars().next()).collect();
        let of_manual: Vec<char> = EXIT_STATUS.iter().filter_map(|(code, _)| code.chars().next()).collect();
        assert_eq!(of_help, of_manual);
    }

    #[test]
    fn groff_finds_nothing_to_complain_about() {
        if Process::new("groff").arg("--version").output().is_err() {
            eprintln!("SKIPPED: manual pages: there is no groff; apt-get install groff-base");
            return;
        }
        let directory = pages();
        for page in fs::read_dir(directory.path()).unwrap() {
            let path = page.unwrap().path();
            let checked = Process::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&path).output().unwrap();
            assert!(checked.status.success() && checked.stderr.is_empty(), "{path:?}: {checked:?}");
        }
    }
}
