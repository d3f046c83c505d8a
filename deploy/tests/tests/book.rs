//! `make docs`: the book has each page, image and heading that its pages lead to.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use weir_deploy_tests::programs::{require, root, run};
use weir_testbed::process;

const MDBOOK: &str = "mdbook";

/// Stands for any page that is not there, at any depth; its links begin at the root of wherever the book is published.
const NOT_FOUND: &str = "404.html";

/// Pages below a directory, by path, with their text.
fn pages(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension() == Some(OsStr::new("html")) && path.file_name() != Some(OsStr::new(NOT_FOUND)) {
                let text = fs::read_to_string(&path).unwrap();
                found.insert(path, text);
            }
        }
    }
    found
}

/// Values of an attribute.
fn values<'a>(page: &'a str, attribute: &str) -> Vec<&'a str> {
    let begin = format!(" {attribute}=\"");
    page.split(&begin).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}

/// Why a link of a page leads nowhere; links to elsewhere are not followed.
fn broken(page: &Path, link: &str, ids: &BTreeMap<&Path, HashSet<&str>>) -> Option<String> {
    if ["http:", "https:", "mailto:", "data:"].iter().any(|scheme| link.starts_with(scheme)) {
        return None;
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let mut target = if file.is_empty() { page.to_owned() } else { plain(&page.parent()?.join(file)) };
    if target.is_dir() {
        target.push("index.html");
    }
    if !target.is_file() {
        return Some(format!("{} leads to {link}, which is not there", page.display()));
    }
    let known = ids.get(target.as_path()).is_none_or(|ids| heading.is_empty() || ids.contains(heading));
    (!known).then(|| format!("{} leads to {link}, a page without that heading", page.display()))
}

#[test]
fn every_link_of_the_book_leads_somewhere() {
    if !require("the book", &[MDBOOK]) {
        return;
    }
    run(Command::new("deploy/dev/book.sh").current_dir(root()).arg(process::built(MDBOOK).unwrap())).unwrap();
    let pages = pages(&root().join("target/book"));
    let ids = pages.iter().map(|(path, text)| (path.as_path(), values(text, "id").into_iter().collect())).collect();
    let mut wrong = Vec::new();
    let mut followed = 0;
    for (path, text) in &pages {
        let links = ["href", "src", "srcset"].map(|attribute| values(text, attribute)).concat();
        followed += links.len();
        wrong.extend(links.into_iter().filter_map(|link| broken(path, link, &ids)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(followed > 1000, "only {followed} links in {} pages", pages.len());
}

#[test]
fn a_link_to_a_page_or_heading_that_is_not_there_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let [page, other] = ["a.html", "b.html"].map(|name| directory.path().join(name));
    [&page, &other].into_iter().for_each(|path| fs::write(path, "").unwrap());
    let ids = BTreeMap::from([(page.as_path(), HashSet::from(["top"])), (other.as_path(), HashSet::new())]);
    for good in ["b.html", "#top", "", "a.html#top", "x/../b.html", "https://example.net/x"] {
        assert_eq!(broken(&page, good, &ids), None);
    }
    for bad in ["c.html", "#end", "b.html#top", "docs/a.png"] {
        assert!(broken(&page, bad, &ids).is_some(), "{bad}");
    }
}
