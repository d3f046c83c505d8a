#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a book of docs/ and of the pages at the root of the tree, in target/book.
#
#   deploy/dev/book.sh MDBOOK
#
# mdBook reads one directory. So all pages are put into one first, and the links between the two places follow: what is
# `../NAME.md` in docs/ and `docs/NAME.md` at the root becomes NAME.md.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly mdbook=$1 stage=target/book-src

rm -rf "$stage"
mkdir -p "$stage"
cp docs/book.{toml,css} "$stage"
cp -r docs "$stage/src"
rm "$stage"/src/book.{toml,css}
cp ./*.md "$stage/src"
find "$stage/src" -name '*.md' -exec sed -i -E \
	-e 's#\]\(\.\./(\.\./)?([A-Z]+\.md)#](\1\2#g' \
	-e 's#\]\(docs/#](#g' \
	-e 's#src(set)?="docs/#src\1="#g' {} +
# What is no page is in the tree, not in the book: its name stays, its link goes.
find "$stage/src" -maxdepth 1 -name '*.md' ! -name SUMMARY.md -exec sed -i -E \
	's#\[([^]]*)\]\((\.\./|benches/|bpf/|crates/|deploy/|userspace/|LICENSE)[^)]*\)#\1#g' {} +
# A chapter README.md becomes index.html, and mdBook forgets its links.
find "$stage/src" -name '*.md' ! -name SUMMARY.md -exec sed -i -E 's#\]\(([^)]*)README\.md#](\1index.md#g' {} +

"$mdbook" build "$stage" --dest-dir "$PWD/target/book"
echo "target/book/index.html"
