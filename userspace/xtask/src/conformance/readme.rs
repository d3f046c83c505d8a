//! The commands that README.md has for a cluster. They are run as they stand there, so that a wrong README fails.

use anyhow::{Context, Result, ensure};

const README: &str = include_str!("../../../../README.md");

/// How the paragraph begins that the installation's commands follow.
pub(super) const INSTALL: &str = "**A cluster**";
/// How the one begins that the removal's follow.
pub(super) const TAKE_OUT: &str = "**Take it out again.**";

/// What a line of a block begins with.
const INDENT: &str = "    ";

/// The commands of the first block after the paragraph that begins so, without what is a comment to the shell.
///
/// # Errors
/// When there is none.
pub(super) fn block(begin: &str) -> Result<Vec<&'static str>> {
    commands(README, begin)
}

/// The only command of such a block that begins so.
///
/// # Errors
/// When there is none, or more than one.
pub(super) fn command(of: &str, begin: &str) -> Result<&'static str> {
    let mut found = block(of)?.into_iter().filter(|command| command.starts_with(begin));
    let first = found.next().with_context(|| format!("README.md has no command `{begin}...` after {of:?}"))?;
    ensure!(found.next().is_none(), "README.md has more than one command `{begin}...` after {of:?}");
    Ok(first)
}

fn commands<'a>(page: &'a str, begin: &str) -> Result<Vec<&'a str>> {
    let rest = page.lines().skip_while(|line| !line.starts_with(begin)).skip_while(|line| !line.starts_with(INDENT));
    let block = rest.map_while(|line| line.strip_prefix(INDENT));
    let found: Vec<_> = block.map(|line| line.split(" #").next().unwrap_or_default().trim()).collect();
    ensure!(!found.is_empty(), "README.md has no block of commands after a paragraph that begins with {begin:?}");
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

    use super::*;

    #[test]
    fn a_block_is_what_is_indented_after_its_paragraph_without_comments() {
        let page = "**A**\n\n    a\n\n**B**, here:\ntext\n\n    b -x   # why\n    c\nmore\n    d\n";
        assert_eq!(commands(page, "**B**").unwrap(), ["b -x", "c"]);
        assert_eq!(commands(page, "**A**").unwrap(), ["a"]);
        assert!(commands(page, "**C**").is_err());
        assert!(commands("**A**\n\ntext\n", "**A**").is_err());
    }

    #[test]
    fn the_readme_has_both_blocks() {
        assert!(block(INSTALL).unwrap().len() > 2);
        assert!(command(TAKE_OUT, "helm uninstall ").is_ok());
        assert!(command(TAKE_OUT, "kubectl ").is_err(), "there are some");
    }
}
