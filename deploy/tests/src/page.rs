//! What pages tell their readers to type: lines of code blocks, and commands in sentences.

/// A line of a code block.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Line {
    /// What is typed.
    pub command: String,
    /// What stands behind it, for people; may be empty.
    pub comment: String,
}

impl Line {
    /// Takes a line apart as a shell does.
    #[must_use]
    pub fn parse(code: &str) -> Self {
        let (command, comment) = code.split_once(" # ").unwrap_or((code, ""));
        Self { command: command.trim().to_owned(), comment: comment.trim().to_owned() }
    }
}

/// The lines of the first code block behind `words`; none if there is no such block.
#[must_use]
pub fn block_behind(page: &str, words: &str) -> Vec<Line> {
    let (_, rest) = page.split_once(words).unwrap_or_default();
    let indented = |line: &str| line.strip_prefix("    ").map(Line::parse);
    let block = rest.lines().skip_while(|line| indented(line).is_none());
    block.map_while(indented).collect()
}

/// The commands in the paragraph that begins with `words` at the start of a line: its spans of code; none if there is no such
/// paragraph.
#[must_use]
pub fn spans_of(page: &str, words: &str) -> Vec<String> {
    let paragraph = page.split("\n\n").map(str::trim_start).find(|paragraph| paragraph.starts_with(words));
    paragraph.unwrap_or_default().split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Weir\n\n    make demo\n\n**Install it** on one machine:\n\n    make x     # first\n    \
                        install \"a#b\"\n\nElsewhere `make y`, then\n`reboot`.\n\nThe end.\n";

    #[test]
    fn a_block_is_the_one_behind_the_words_without_what_is_a_comment_to_the_shell() {
        let lines = [Line::parse("make x # first"), Line::parse("install \"a#b\"")];
        assert_eq!(block_behind(PAGE, "Install it"), lines);
        assert_eq!((lines[0].command.as_str(), lines[0].comment.as_str()), ("make x", "first"));
        assert_eq!((lines[1].command.as_str(), lines[1].comment.as_str()), ("install \"a#b\"", ""));
        assert_eq!(block_behind(PAGE, "Elsewhere"), []);
        assert_eq!(block_behind(PAGE, "nowhere"), []);
    }

    #[test]
    fn commands_of_a_sentence_are_its_spans_of_code() {
        assert_eq!(spans_of(PAGE, "Elsewhere"), ["make y", "reboot"]);
        assert!(spans_of(PAGE, "The end").is_empty() && spans_of(PAGE, "nowhere").is_empty());
    }
}
