//! The reference part of `docs/cli.md` is the help text of every command: this test compares them, or writes it. The kinds of
//! documents are compared, too.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory, ValueEnum};
use regex::Regex;

use crate::args::Cli;
use crate::output::Kind;

const MARK: &str = "do not edit below. -->\n";

fn reference(command: &mut Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let help = command.render_long_help().to_string();
    let lines: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
    write!(text, "\n### {name}\n\n```text\n{}\n```\n", lines.join("\n")).unwrap();
    for child in command.get_subcommands().filter(|child| child.get_name() != "help") {
        // Told once, with the program itself.
        let once = |arg: Arg| if arg.is_global_set() { arg.hide(true) } else { arg };
        reference(&mut child.clone().mut_args(once), text);
    }
}

fn manual() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md")
}

#[test]
fn the_documentation_names_every_kind_of_document_and_no_other() {
    let document = fs::read_to_string(manual()).unwrap();
    let told = Regex::new(r"a `kind` at the top:([^*]*)\.").unwrap().captures(&document).unwrap()[1].to_owned();
    let told: BTreeSet<_> =
        Regex::new(r"`([A-Z]\w+)`").unwrap().captures_iter(&told).map(|name| name[1].to_owned()).collect();
    let kinds: BTreeSet<_> = Kind::value_variants().iter().map(|kind| format!("{kind:?}")).collect();
    assert_eq!(told, kinds);
}

#[test]
fn the_reference_in_the_documentation_is_what_help_says() {
    let path = manual();
    let document = fs::read_to_string(&path).unwrap();
    let (prose, written) = document.split_once(MARK).unwrap();
    // A fixed width, and no word of the environment of whoever runs the test.
    let mut command = Cli::command().term_width(100).mut_args(|arg| arg.hide_env_values(true));
    command.build();
    let mut expected = String::new();
    reference(&mut command, &mut expected);
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{prose}{MARK}{expected}")).unwrap();
        return;
    }
    assert!(
        written == expected,
        "docs/cli.md is out of date: WEIR_WRITE_DOCS=1 cargo test -p weir-cli --bin weir reference"
    );
}
