//! A page of the documentation, as a reader of Markdown sees it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The root of the tree.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What a page holds that can be wrong.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Its path below the root.
    pub(crate) path: PathBuf,
    /// The text as it stands.
    pub(crate) source: String,
    /// Where links and pictures lead, as written.
    pub(crate) links: Vec<String>,
    /// By which links reach its headings.
    pub(crate) anchors: Vec<String>,
    /// Its first heading.
    pub(crate) title: String,
    /// What is set as code, in lines and in blocks.
    pub(crate) code: Vec<String>,
}

impl Page {
    /// Reads one.
    pub(crate) fn read(path: &Path) -> Self {
        let source = fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut page = Self { path: path.to_owned(), ..Self::default() };
        let (mut heading, mut block) = (None, false);
        let mut slugs = HashMap::new();
        for event in Parser::new_ext(&source, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let text = heading.take().unwrap_or_default();
                    page.anchors.push(anchor(&text, &mut slugs));
                    if page.title.is_empty() {
                        page.title = text;
                    }
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_) | CodeBlockKind::Indented)) => block = true,
                Event::End(TagEnd::CodeBlock) => block = false,
                Event::Text(text) if block => page.code.push(text.into_string()),
                Event::Text(text) => heading.iter_mut().for_each(|heading| heading.push_str(&text)),
                Event::Code(text) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&text));
                    page.code.push(text.into_string());
                }
                _ => {}
            }
        }
        page.source = source;
        page
    }

    /// The directory that its links begin in, below the root.
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// The cells of its tables, row by row, without the rows of dashes.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Vec<&str>> {
        let rows = self.source.lines().filter(|line| line.starts_with('|') && !line.starts_with("| ---"));
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
    }
}

/// As the hosts of repositories and mdBook make it of a heading: letters, digits, `-` and `_` in lower case, a dash for each
/// space; a number behind one that was there before.
fn anchor(heading: &str, seen: &mut HashMap<String, usize>) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect();
    let count = seen.entry(slug.clone()).or_default();
    *count += 1;
    if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
}

/// Every page, in order: those in `docs`, and those at the root.
pub(crate) fn pages() -> Vec<Page> {
    let mut paths = below(&root().join("docs"), "md");
    paths.extend(
        ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"]
            .map(|name| root().join(name)),
    );
    paths.sort();
    paths.iter().map(|path| Page::read(path.strip_prefix(root()).unwrap())).collect()
}

/// All files below a directory with this ending.
pub(crate) fn below(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path {
            path if path.is_dir() => below(&path, ending),
            path if path.extension().is_some_and(|found| found == ending) => vec![path],
            _ => Vec::new(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_is_reached_by_its_words_and_a_second_one_by_a_number() {
        let mut seen = HashMap::new();
        let anchors =
            ["Past the host's stack", "`weir map` dump", "Path/MTU", "Path/MTU"].map(|h| anchor(h, &mut seen));
        assert_eq!(anchors, ["past-the-hosts-stack", "weir-map-dump", "pathmtu", "pathmtu-1"]);
    }
}
