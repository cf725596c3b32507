//! Numbers as they are read.

/// A number in four digits, plain where that is short.
pub fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".to_string();
    }
    if (1e-3..1e4).contains(&value.abs()) {
        return format!(
            "{:.*}",
            (3 - value.abs().log10().floor() as i32).max(0) as usize,
            value
        );
    }
    format!("{value:.3e}")
}

/// 1234567 as 1,234,567.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A share in per cent, in three digits or so.
pub fn percent(share: f64) -> String {
    match share {
        0.0 => "0 %".to_string(),
        share if share < 1e-4 => format!("{:.1e} %", 100.0 * share),
        share => format!("{:.2} %", 100.0 * share),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(0.0), "0");
        assert_eq!(short(12.3456), "12.35");
        assert_eq!(short(0.00123456), "0.001235");
        assert_eq!(short(1.5e-9), "1.500e-9");
        assert_eq!(grouped(1234567), "1,234,567");
        assert_eq!(grouped(12), "12");
    }
}
