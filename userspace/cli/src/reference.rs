//! The reference part of `docs/cli.md` is the help text of every command: this test compares them, or writes it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use crate::args::Cli;

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

#[test]
fn the_reference_in_the_documentation_is_what_help_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
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
