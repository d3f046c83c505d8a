//! Which metrics and labels a PromQL expression asks for. It takes expressions apart, and no more: whether one is right is
//! promtool's to say.

use std::collections::BTreeSet;

/// A selector: a metric, and the labels that it is matched by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    pub(crate) labels: Vec<String>,
}

/// What an expression asks for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Expression {
    pub(crate) selectors: Vec<Selector>,
    /// Labels of `by`, `on`, `group_left` and the like.
    pub(crate) grouped: BTreeSet<String>,
    /// Whether the result has no other labels than those of a `by`.
    pub(crate) sums: bool,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Token {
    Word(String),
    Text,
    Mark(char),
}

/// Words that are followed by labels in parentheses.
const GROUPINGS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Words that may be followed by one of them, and are functions else.
const AGGREGATIONS: [&str; 12] =
    ["sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile", "stddev", "stdvar", "group", "count_values"];
/// Words between operands.
const OPERATORS: [&str; 6] = ["and", "or", "unless", "bool", "offset", "atan2"];

impl Expression {
    /// Takes an expression apart.
    pub(crate) fn of(text: &str) -> Self {
        let tokens = tokens(text);
        let mut found = Self::default();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            let Token::Word(word) = token else { continue };
            let next = tokens.get(at);
            if GROUPINGS.contains(&word.as_str()) {
                let labels = block(&tokens, &mut at, '(', ')');
                found.sums |= word == "by";
                found.grouped.extend(labels.into_iter().filter_map(Token::word));
            } else if OPERATORS.contains(&word.as_str())
                || AGGREGATIONS.contains(&word.as_str())
                || next == Some(&Token::Mark('('))
            {
                // What follows is taken apart in its turn.
            } else {
                let inner =
                    if next == Some(&Token::Mark('{')) { block(&tokens, &mut at, '{', '}') } else { Vec::new() };
                let labels = inner.into_iter().filter_map(Token::word).collect();
                found.selectors.push(Selector { metric: word.clone(), labels });
            }
        }
        found
    }
}

impl Token {
    fn word(self) -> Option<String> {
        match self {
            Self::Word(word) => Some(word),
            Self::Text | Self::Mark(_) => None,
        }
    }
}

/// The tokens between two marks, if the first one is next.
fn block(tokens: &[Token], at: &mut usize, open: char, close: char) -> Vec<Token> {
    if tokens.get(*at) != Some(&Token::Mark(open)) {
        return Vec::new();
    }
    let rest = &tokens[*at + 1..];
    let inner: Vec<_> = rest.iter().take_while(|token| **token != Token::Mark(close)).cloned().collect();
    *at += inner.len() + 2;
    inner
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(first) = rest.next() {
        let is_part = |c: &char| c.is_ascii_alphanumeric() || "_:".contains(*c);
        match first {
            c if c.is_whitespace() => {}
            '"' | '\'' => {
                while let Some(c) = rest.next().filter(|c| *c != first) {
                    if c == '\\' {
                        rest.next();
                    }
                }
                tokens.push(Token::Text);
            }
            // Durations and numbers, in brackets or not, and Grafana's variables.
            c if c.is_ascii_digit() || c == '$' => while rest.next_if(|c| is_part(c) || *c == '.').is_some() {},
            c if is_part(&c) => {
                let mut word = String::from(c);
                while let Some(c) = rest.next_if(is_part) {
                    word.push(c);
                }
                tokens.push(Token::Word(word));
            }
            c => tokens.push(Token::Mark(c)),
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(metric: &str, labels: &[&str]) -> Selector {
        Selector { metric: metric.to_owned(), labels: labels.iter().map(|label| (*label).to_owned()).collect() }
    }

    #[test]
    fn metrics_their_matchers_and_the_labels_of_groupings_are_found() {
        let text = r#"sum by (node, reason) (rate(weir_drops_total{node=~"$node",reason!~"a|b}"}[$__rate_interval])) / ignoring (state) up > 0.85"#;
        let found = Expression::of(text);
        assert_eq!(found.selectors, [selector("weir_drops_total", &["node", "reason"]), selector("up", &[])]);
        assert_eq!(found.grouped, ["node", "reason", "state"].map(str::to_owned).into());
        assert!(found.sums);
    }

    #[test]
    fn functions_operators_numbers_and_durations_are_no_metrics() {
        let text = "histogram_quantile(0.99, rate(a_bucket[5m] offset 1h30m)) or vector(1e9) unless b and topk(10, c)";
        let metrics: Vec<_> = Expression::of(text).selectors.into_iter().map(|it| it.metric).collect();
        assert_eq!(metrics, ["a_bucket", "b", "c"]);
        assert!(!Expression::of(text).sums);
    }
}
