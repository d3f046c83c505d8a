//! Quantities as the Kubernetes API writes them: `123456789n`, `250m`, `1.5`, `128974848`, `1024Ki`, `12e6`.
//!
//! apimachinery, `pkg/api/resource/suffix.go`.

/// Reads a quantity. `None` if it is none. `1E` is 10^18, `1E3` is 1000. A quantity may be negative, usage may not:
/// that is for who asked to find out.
#[must_use]
pub fn parse(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    scale(suffix).map(|scale| number * scale).filter(|number| number.is_finite())
}

fn scale(suffix: &str) -> Option<f64> {
    Some(match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0_f64.powi(3),
        "Ti" => 1024.0_f64.powi(4),
        "Pi" => 1024.0_f64.powi(5),
        "Ei" => 1024.0_f64.powi(6),
        exponent => 10_f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn what_metrics_server_writes_is_read() {
        assert_eq!(parse("0"), Some(0.0));
        assert_eq!(parse("250m"), Some(0.25));
        assert_eq!(parse("137500000n"), Some(0.1375));
        assert_eq!(parse("1024Ki"), Some(1_048_576.0));
    }

    #[test]
    fn every_way_to_write_128974848_is_the_same() {
        for text in ["128974848", "128974848000m", "123Mi", "125952Ki", "128.974848M", "128974.848e3", "+128974848"] {
            let number = parse(text).expect(text);
            assert!((number - 128_974_848.0).abs() < 1e-3, "{text} is read as {number}");
        }
    }

    #[test]
    fn a_capital_e_is_a_suffix_alone_and_an_exponent_before_a_number() {
        assert_eq!(parse("2E"), Some(2e18));
        assert_eq!(parse("2E3"), Some(2e3));
        assert_eq!(parse("2Ei"), Some(2_305_843_009_213_693_952.0));
    }

    #[test]
    fn what_is_no_quantity_is_not_read() {
        for text in ["", "m", "NaN", "inf", "1 Gi", "1Kb", "0x10", "1e", "1e400", "1.2.3", "--1", "1ee3", "1K"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
