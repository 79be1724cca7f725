//! Patterns of names.

/// Whether a pattern fits a whole name: `*` stands for any characters, `?` for one. Time: at most the product of the lengths.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    captures(pattern, name).is_some()
}

/// What each `*` of a pattern stands for in a name that it fits; the last takes what the others leave, which take as little as they can.
pub(crate) fn captures(pattern: &str, name: &str) -> Option<Vec<String>> {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Beginning and end in the name of what each `*` so far stands for, and the position behind the last one in the pattern: on a mismatch
    // that takes one character more.
    let mut spans: Vec<(usize, usize)> = vec![];
    let mut after = 0;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                p += 1;
                after = p;
                spans.push((n, n));
            }
            Some(&c) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let (_, end) = spans.last_mut()?;
                *end += 1;
                (p, n) = (after, *end);
            }
        }
    }
    for &c in &pattern[p..] {
        if c != '*' {
            return None;
        }
        spans.push((n, n));
    }
    Some(spans.iter().map(|&(from, to)| name[from..to].iter().collect()).collect())
}

/// A pattern with texts in place of its `*`, if it has as many.
pub(crate) fn filled(pattern: &str, texts: &[String]) -> Option<String> {
    let mut pieces = pattern.split('*');
    let mut out = pieces.next()?.to_string();
    let mut texts = texts.iter();
    for piece in pieces {
        out += texts.next()?;
        out += piece;
    }
    texts.next().is_none().then_some(out)
}

/// Whether a pattern fits a parameter: its whole name, or that of a layer around it.
pub(crate) fn fits_within(pattern: &str, name: &str) -> bool {
    let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
    ends.into_iter().any(|end| fits(pattern, &name[..end]))
}

#[cfg(test)]
mod tests {
    use super::{captures, filled, fits, fits_within};

    #[test]
    fn patterns_fit_whole_names() {
        assert!(fits("*.bias", "0.bias") && fits("*", "") && fits("a?c", "abc"));
        assert!(fits("*norm*", "block.norm1.weight") && fits("a*b*c", "a1b2b3c") && fits("a**", "a"));
        assert!(!fits("*.bias", "bias") && !fits("bias", "0.bias") && !fits("a?c", "ac") && !fits("", "a"));
        assert!(!fits("a*b*c", "acb") && !fits("*aa", "a") && !fits("a*a", "a"));
        assert!(
            fits("a.weight", "a.weight") && !fits("a.weight", "a.weights") && !fits("*.weight", "weight")
        );
        assert!(fits("*.*.bias", "x.y.bias") && fits("[a]?", "[a]?"));
    }

    #[test]
    fn stars_stand_for_parts_of_a_name() {
        let texts = |pattern, name| captures(pattern, name).map(|t| t.join("|"));
        assert_eq!(texts("h.*.ln_*.weight", "h.10.ln_1.weight").as_deref(), Some("10|1"));
        assert_eq!(texts("*.*", "a.b.c").as_deref(), Some("a|b.c"));
        assert_eq!(texts("*a", "aba").as_deref(), Some("ab"));
        assert_eq!((texts("a**", "ab").as_deref(), texts("a?", "ab").as_deref()), (Some("|b"), Some("")));
        assert_eq!(texts("h.*.weight", "h.weight"), None);
        let filled = |pattern| filled(pattern, &["1".into(), "x".into()]);
        assert_eq!(filled("*.a.*").as_deref(), Some("1.a.x"));
        assert_eq!((filled("*"), filled("***"), filled("a")), (None, None, None));
    }

    #[test]
    fn patterns_fit_layers() {
        assert!(fits_within("encoder", "encoder.0.weight") && fits_within("encoder.*", "encoder.0.weight"));
        assert!(fits_within("*.bias", "encoder.0.bias") && fits_within("encoder.0.bias", "encoder.0.bias"));
        assert!(!fits_within("enc", "encoder.0.weight") && !fits_within("0", "encoder.0.weight"));
    }

    #[test]
    fn many_stars_take_no_time() {
        assert!(!fits(&"*a".repeat(40), &"a".repeat(39)));
        assert!(!fits(&format!("{}b", "a*".repeat(2000)), &"a".repeat(4000)));
    }
}
