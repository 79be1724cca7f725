//! Patterns of names.

/// Whether a pattern fits a whole name: `*` stands for any characters, `?` for one. Time: at most the product of the lengths.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The position behind the last `*`, and that in the name at the time: on a mismatch the rest is tried one character further.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                p += 1;
                star = Some((p, n));
            }
            Some(&c) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    (p, n) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// Whether a pattern fits a parameter: its whole name, or that of a layer around it.
pub(crate) fn fits_within(pattern: &str, name: &str) -> bool {
    let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
    ends.into_iter().any(|end| fits(pattern, &name[..end]))
}

#[cfg(test)]
mod tests {
    use super::{fits, fits_within};

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
