//! What stands beside the state dict: plain data go along when the file is written again, and what
//! does not is named.

use crate::error::ArchiveError;
use crate::pickle::{Budget, Id, Plain, Value};
use crate::torch_file::settings::PLACES;
use crate::torch_file::state_dict::{KEY_SHOWN, Reading};

/// Settings that are named when they are left out.
const SHOWN: usize = 10;

/// Settings on their way into what is written.
#[derive(Default)]
struct Carrying<'a> {
    /// The keys that lead to a setting.
    keys: Vec<&'a str>,
    /// Name and class of the first that are left out.
    left_out: Vec<String>,
    left_out_count: usize,
}

impl<'a> Reading<'a> {
    /// Plain data beside the state dict; everything else is set aside.
    pub(super) fn sibling(&mut self, key: Id, value: Id) -> Result<Option<Plain>, ArchiveError> {
        let name = self.values.text(key).filter(|name| PLACES.contains(name));
        if let (Some(name), Value::Dict(_)) = (name, self.values.get(value)) {
            return self.settings(name, value);
        }
        let tensors = self.count_tensors(value)?;
        let optimizer = self.is_optimizer(key);
        if tensors > 0 || optimizer {
            let plural = if tensors == 1 { "" } else { "s" };
            let reason = format!("({tensors} tensor{plural}) is not part of the model and");
            self.leave_out(key, &reason);
            return Ok(None);
        }
        let plain = self.plain(value)?;
        if plain.is_none() {
            self.leave_out(key, "holds Python objects and");
        }
        Ok(plain)
    }

    /// The settings of a run without those that are no plain data. A network is built from the
    /// others.
    fn settings(&mut self, place: &'a str, id: Id) -> Result<Option<Plain>, ArchiveError> {
        let mut carrying = Carrying {
            keys: vec![place],
            ..Carrying::default()
        };
        let plain = self.carried(id, &mut carrying)?;
        self.notes.extend(carrying.note());
        Ok(plain)
    }

    fn carried(
        &mut self,
        id: Id,
        carrying: &mut Carrying<'a>,
    ) -> Result<Option<Plain>, ArchiveError> {
        let Value::Dict(dict) = self.values.get(id) else {
            let plain = self.plain(id)?;
            if plain.is_none() {
                let class = self.class_of(id);
                carrying.leave_out(&class);
            }
            return Ok(plain);
        };
        self.pay(Budget::enter)?;
        self.pay(|budget| budget.hold(dict.entries.len() * size_of::<(Plain, Plain)>()))?;
        let mut entries = Vec::new();
        for (key, value) in &dict.entries {
            let kind = self.values.get(*key).kind();
            carrying.keys.push(self.values.text(*key).unwrap_or(kind));
            match self.plain(*key)?.filter(Plain::is_hashable) {
                Some(key) => {
                    let value = self.carried(*value, carrying)?;
                    entries.extend(value.map(|value| (key, value)));
                }
                None => carrying.leave_out("no plain key"),
            }
            carrying.keys.pop();
        }
        self.budget.leave();
        let ordered = dict.ordered;
        Ok(Some(Plain::Dict { ordered, entries }))
    }

    /// What a value that is no plain data is called in a note.
    fn class_of(&self, id: Id) -> String {
        let class = match self.values.get(id) {
            _ if self.is_tensor(id) => "a tensor".to_owned(),
            Value::Global(name) => name.clone(),
            Value::Call(call) => self.values.described(call),
            other => other.kind().to_owned(),
        };
        class.chars().take(KEY_SHOWN).collect()
    }

    pub(super) fn is_optimizer(&self, key: Id) -> bool {
        let text = self.values.text(key);
        text.is_some_and(|text| text.starts_with("optimizer"))
    }

    pub(super) fn leave_out(&mut self, key: Id, reason: &str) {
        let kind = self.values.get(key).kind();
        let name = self.values.text(key).unwrap_or(kind);
        let name: String = name.chars().take(KEY_SHOWN).collect();
        let note = format!("`{name}` {reason} is left out of what is written");
        self.notes.push(note);
    }
}

impl Carrying<'_> {
    fn leave_out(&mut self, class: &str) {
        self.left_out_count += 1;
        if self.left_out.len() < SHOWN {
            let name = self.keys.join(".");
            let name: String = name.chars().take(KEY_SHOWN).collect();
            self.left_out.push(format!("`{name}` ({class})"));
        }
    }

    /// A sentence about what is left out, if anything.
    fn note(&self) -> Option<String> {
        let list = self.left_out.join(", ");
        let more = match self.left_out_count - self.left_out.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let are = if self.left_out_count == 1 {
            "is"
        } else {
            "are"
        };
        (!list.is_empty()).then(|| format!("{list}{more} {are} left out of what is written"))
    }
}
