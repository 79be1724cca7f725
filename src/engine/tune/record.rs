//! What was measured of one problem, and its text in the disk cache.

use std::collections::BTreeMap;
use std::sync::Arc;

/// First line of the text; another format has another one.
const HEAD: &str = "trefoil measured choices 1";

/// Which variant was fastest, and the times of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) chosen: String,
    /// What the static rules take.
    pub(crate) preferred: String,
    /// Variants with their times in nanoseconds.
    pub(crate) times: Vec<(String, u64)>,
}

/// Records by [`name`].
pub(crate) type Records = BTreeMap<String, Arc<Record>>;

/// The name of a problem of an operation among the records.
pub(crate) fn name(op: &str, problem: &str) -> String {
    format!("{op}\t{problem}")
}

/// The records as text, a line each. What would break a line is left out.
pub(crate) fn encode(records: &Records) -> String {
    let mut text = format!("{HEAD}\n");
    for (name, r) in records {
        let times: Vec<_> = r.times.iter().map(|(variant, ns)| format!("{variant}={ns}")).collect();
        let line = [name, &r.chosen, &r.preferred, &times.join(" ")].map(String::as_str).join("\t");
        if decode_line(&line).is_some_and(|(n, back)| n == *name && back == **r) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// The records of a text; `None` for another format.
pub(crate) fn decode(text: &[u8]) -> Option<Records> {
    let lines = std::str::from_utf8(text).ok()?.strip_prefix(HEAD)?.strip_prefix('\n')?;
    let record = |line| decode_line(line).map(|(name, r)| (name, Arc::new(r)));
    lines.lines().map(record).collect()
}

fn decode_line(line: &str) -> Option<(String, Record)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [op, problem, chosen, preferred, times] = fields[..] else { return None };
    let time = |part: &str| {
        let (variant, ns) = part.split_once('=')?;
        Some((variant.to_string(), ns.parse().ok()?))
    };
    let times = times.split(' ').map(time).collect::<Option<Vec<_>>>()?;
    let named = !line.contains('\n') && times.iter().any(|(variant, _)| variant == chosen);
    let record = Record { chosen: chosen.into(), preferred: preferred.into(), times };
    named.then(|| (name(op, problem), record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(chosen: &str) -> Arc<Record> {
        let times = vec![("fast".to_string(), 1500), ("slow".to_string(), 2_000_000)];
        Arc::new(Record { chosen: chosen.into(), preferred: "slow".into(), times })
    }

    #[test]
    fn records_come_back_from_their_text() {
        let all: Records =
            [(name("gemm", "P { m: 3 }"), record("fast")), (name("sort", "S(\"a b\")"), record("slow"))]
                .into();
        assert_eq!(decode(encode(&all).as_bytes()), Some(all));
        assert_eq!(decode(encode(&Records::new()).as_bytes()), Some(Records::new()));
    }

    #[test]
    fn what_would_break_a_line_is_not_written() {
        let odd: Records = [
            (name("gemm", "two\nlines"), record("fast")),
            (name("gemm", "a\ttab"), record("fast")),
            (name("gemm", "untimed"), record("none")),
            (name("gemm", "plain"), record("fast")),
        ]
        .into();
        let back = decode(encode(&odd).as_bytes()).unwrap();
        assert_eq!(back.keys().collect::<Vec<_>>(), ["gemm\tplain"]);
    }

    #[test]
    fn another_format_is_none() {
        let good = encode(&[(name("gemm", "p"), record("fast"))].into());
        for bad in [
            good.replace("choices 1", "choices 2"),
            good.replace("1500", "soon"),
            good.replace("\tslow\t", "\t"),
            good.replace("fast=", ""),
            String::new(),
        ] {
            assert_ne!(bad, good);
            assert_eq!(decode(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(decode(&[0xff, 0xfe]), None);
    }
}
