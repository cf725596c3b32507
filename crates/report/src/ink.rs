//! Colours by what they belong to.

use serde::Serialize;

/// What a mark belongs to, which decides its colour: three that remain apart for the colour-blind, after
/// Okabe and Ito.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ink {
    /// The first model: blue.
    First,
    /// The second model: orange.
    Second,
    /// The input: green.
    Input,
    /// What is derived: grey.
    #[serde(rename = "bound")]
    Derived,
}

impl Ink {
    /// In six hexadecimal digits, on a white ground.
    pub fn colour(self) -> &'static str {
        match self {
            Ink::First => "#0067a8",
            Ink::Second => "#c4500a",
            Ink::Input => "#00795a",
            Ink::Derived => "#6f6f6f",
        }
    }
}
