//! Sizes and shares as people type them.

/// A share: `0.125`, `1/8` or `12.5%`.
pub(super) fn share(text: &str) -> Result<f64, String> {
    number(text).ok_or_else(|| "expected a number, such as 0.125, 1/8 or 12.5%".to_string())
}

/// An accuracy: `98`, `98%` or `0.98`.
pub(super) fn accuracy(text: &str) -> Result<f64, String> {
    let share = match number(text) {
        Some(percent) if percent > 1.0 && !text.ends_with('%') => Some(percent / 100.0),
        share => share,
    };
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "expected an accuracy, such as 98, 98% or 0.98".to_string())
}

/// How many times fewer: `8`, or the share that is left, `1/8` or `12.5%`.
pub(super) fn times(text: &str) -> Result<f64, String> {
    let is_share = text.contains('/') || text.ends_with('%');
    match number(text) {
        Some(number) if is_share => Ok(1.0 / number),
        Some(number) => Ok(number),
        None => Err("expected a number, such as 8, 1/8 or 12.5%".to_string()),
    }
}

/// A number above zero: `2`, `0.5` or `16/8`.
pub(super) fn above_zero(text: &str) -> Result<f64, String> {
    number(text)
        .filter(|number| number.is_finite() && *number > 0.0)
        .ok_or_else(|| "expected a number above 0, such as 2, 0.5 or 16/8".to_string())
}

/// A number, a fraction or per cent.
fn number(text: &str) -> Option<f64> {
    let plain = |text: &str| text.trim().parse::<f64>().ok();
    if let Some(percent) = text.strip_suffix('%') {
        return Some(plain(percent)? / 100.0);
    }
    match text.split_once('/') {
        Some((above, below)) => Some(plain(above)? / plain(below)?),
        None => plain(text),
    }
}

/// What may follow a number of bytes.
const UNITS: [(&str, f64); 9] = [
    ("kib", 1024.0),
    ("mib", 1024.0 * 1024.0),
    ("ki", 1024.0),
    ("mi", 1024.0 * 1024.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("k", 1e3),
    ("m", 1e6),
    ("b", 1.0),
];

/// A count of bytes: `7600`, `7.6k`, `64kB`, `64KiB`, `1.2M`.
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let lower = text.trim().to_ascii_lowercase();
    let unit = UNITS
        .iter()
        .find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?, *factor)));
    let (digits, factor) = unit.unwrap_or((&lower, 1.0));
    let bytes = digits.trim().parse::<f64>().ok();
    match bytes.map(|number| number * factor) {
        Some(bytes) if (1.0..=4e9).contains(&bytes) => Ok(bytes as usize),
        _ => Err("expected a number of bytes, such as 7600, 64k, 64KiB or 1.2M".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_taken_as_people_type_it() {
        for text in ["0.125", "1/8", "12.5%", "12.5 %"] {
            assert_eq!(share(text), Ok(0.125), "{text}");
        }
        for text in ["8", "1/8", "12.5%"] {
            assert_eq!(times(text), Ok(8.0), "{text}");
        }
        for text in ["98", "98%", "0.98"] {
            assert_eq!(accuracy(text), Ok(0.98), "{text}");
        }
        for wrong in ["980", "-1", "101%", "nan", "good"] {
            assert!(accuracy(wrong).is_err(), "{wrong}");
        }
        assert!(share("an eighth").is_err() && times("1/").is_err());
        let sizes = [
            ("7600", 7600),
            ("7.6k", 7600),
            ("64kB", 64_000),
            ("64KiB", 65_536),
            ("64Ki", 65_536),
            ("1.2M", 1_200_000),
            ("2 MiB", 2 << 20),
            ("12B", 12),
        ];
        for (text, expected) in sizes {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        assert!(bytes("0").is_err() && bytes("much").is_err() && bytes("5G").is_err());
    }
}
