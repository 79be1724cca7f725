//! Which tags may follow which, from the names of the tags.

use std::sync::Mutex;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor, same_handle};

/// How the names of tags mark the spans of a sequence: `B-PER`, `I-PER`, `O`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TagScheme {
    /// `I-x` only behind `B-x` or `I-x`.
    Bio,
    /// Spans of one step are `S-x`, longer ones go from `B-x` over any number of `I-x` to `E-x`.
    Bioes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Outside,
    Begin,
    Inside,
    End,
    Single,
}

/// A tag: the part of a span, and what kind of span it is.
type Tag<'a> = (Part, &'a str);

fn parse(scheme: TagScheme, name: &str) -> Option<Tag<'_>> {
    if name == "O" {
        return Some((Part::Outside, ""));
    }
    let (part, kind) = name.split_once('-')?;
    let part = match (part, scheme) {
        ("B", _) => Part::Begin,
        ("I", _) => Part::Inside,
        ("E", TagScheme::Bioes) => Part::End,
        ("S", TagScheme::Bioes) => Part::Single,
        _ => return None,
    };
    Some((part, kind))
}

/// Whether a tag may follow another; none stands for what is before the first and behind the last.
fn follows(scheme: TagScheme, from: Option<Tag<'_>>, to: Option<Tag<'_>>) -> bool {
    let open = from.filter(|(part, _)| matches!(part, Part::Begin | Part::Inside)).map(|(_, kind)| kind);
    let goes_on = match to {
        Some((Part::Inside | Part::End, kind)) => Some(kind),
        _ => None,
    };
    match scheme {
        TagScheme::Bio => goes_on.is_none() || goes_on == open,
        TagScheme::Bioes => goes_on == open,
    }
}

/// What is added to the score of a forbidden transition.
const FORBIDDEN: f32 = -1e9;

/// What decoding adds to the scores of transitions, starts and ends.
#[derive(Debug)]
pub(super) struct Constraints {
    tags: usize,
    /// `[K + 2, K]`: a row for each tag that is left, one of starts, one of ends.
    table: Vec<f32>,
    /// The table on the device where it was used last.
    held: Mutex<Option<Tensor>>,
}

impl Constraints {
    /// Errors: a number of names other than that of the tags; names that the scheme does not have.
    pub(super) fn new(op: &'static str, tags: usize, scheme: TagScheme, names: &[&str]) -> Result<Self> {
        if names.len() != tags {
            let (want, got) = (format!("{tags} names"), format!("{}", names.len()));
            return Err(invalid(op, "constraints", want, got));
        }
        let read = |&name| {
            parse(scheme, name).ok_or_else(|| {
                let prefixes = if scheme == TagScheme::Bio { "B- or I-" } else { "B-, I-, E- or S-" };
                let want = format!("names that are O or begin with {prefixes}");
                invalid(op, "constraints", want, format!("`{name}`"))
            })
        };
        let all: Vec<Tag<'_>> = names.iter().map(read).collect::<Result<_>>()?;
        let score = |from, to| if follows(scheme, from, to) { 0.0 } else { FORBIDDEN };
        let mut table: Vec<f32> =
            all.iter().flat_map(|&from| all.iter().map(move |&to| score(Some(from), Some(to)))).collect();
        table.extend(all.iter().map(|&to| score(None, Some(to))));
        table.extend(all.iter().map(|&from| score(Some(from), None)));
        Ok(Constraints { tags, table, held: Mutex::default() })
    }

    /// The table on a device.
    fn on(&self, device: &Device) -> Result<Tensor> {
        let mut held = self.held.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(t) = held.as_ref().filter(|t| same_handle(t.device(), device)) {
            return Ok(t.clone());
        }
        let t = Tensor::from_slice(device, &self.table, &[self.tags + 2, self.tags])?;
        *held = Some(t.clone());
        Ok(t)
    }

    /// Scores of starts and ends `[K]` and of transitions `[K, K]` with those of what is forbidden.
    pub(super) fn apply(&self, [start, end, transitions]: [Tensor; 3]) -> Result<[Tensor; 3]> {
        let table = self.on(start.device())?.to_dtype(start.dtype())?;
        Ok([
            start.add(&table.select(0, self.tags)?)?,
            end.add(&table.select(0, self.tags + 1)?)?,
            transitions.add(&table.narrow(0, 0, self.tags)?)?,
        ])
    }
}
