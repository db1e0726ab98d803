// SPDX-License-Identifier: Apache-2.0
//! Names of topics and patterns of them, by the rules of libdlx, for programs that choose topics
//! themselves: the daemon chooses those of a subscription.

/// How many bytes a name or a pattern may have.
pub const SIZE_MAX: usize = dlpackd_sys::DLX_TOPIC_MAX as usize;

fn has_segments_of(text: &str, is_allowed: impl Fn(char) -> bool) -> bool {
    text.len() <= SIZE_MAX
        && text
            .split('/')
            .all(|segment| !matches!(segment, "" | "." | "..") && segment.chars().all(&is_allowed))
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// Is this the name of a topic? It has 1 to [`SIZE_MAX`] bytes: segments of `A-Z a-z 0-9 _ . -`
/// between single '/', none of them empty, "." or "..".
pub fn is_name(text: &str) -> bool {
    has_segments_of(text, is_of_name)
}

/// Is this a pattern? It is a name in which '*' stands for any characters of its segment, and a
/// last segment "**" for one or more segments. Each name is a pattern, too.
pub fn is_pattern(text: &str) -> bool {
    let stars = text.find("**");
    has_segments_of(text, |c| c == '*' || is_of_name(c))
        && stars.is_none_or(|at| at + 2 == text.len() && (at == 0 || text[..at].ends_with('/')))
}

/// Does the pattern match the topic? Takes time up to the product of their lengths.
///
/// ```
/// assert!(dlx::topic::matches("cam/*", "cam/front"));
/// assert!(!dlx::topic::matches("cam/*", "cam/front/left"));
/// assert!(dlx::topic::matches("cam/**", "cam/front/left"));
/// ```
pub fn matches(pattern: &str, topic: &str) -> bool {
    let (mut pattern, mut topic) = (pattern.as_bytes(), topic.as_bytes());
    // The pattern after the last star of this segment, and the topic after what the star stands
    // for. Each earlier star is settled when the next one is reached.
    let mut star = None;
    loop {
        match (pattern, topic) {
            (b"**", _) => return !topic.is_empty(),
            ([b'*', after @ ..], _) => {
                star = Some((after, topic));
                pattern = after;
            }
            ([], []) => return true,
            ([p, patterns @ ..], [t, topics @ ..]) if p == t => {
                if *t == b'/' {
                    star = None;
                }
                (pattern, topic) = (patterns, topics);
            }
            _ => match star {
                Some((after, [t, topics @ ..])) if *t != b'/' => {
                    star = Some((after, topics));
                    (pattern, topic) = (after, topics);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All texts of up to so many of these characters.
    fn texts(characters: &str, n: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut begin = 0;
        for _ in 0..n {
            let end = all.len();
            for i in begin..end {
                all.extend(
                    characters.chars().map(|c| format!("{}{c}", all[i])).collect::<Vec<_>>(),
                );
            }
            begin = end;
        }
        all
    }

    /// By the definition, slowly: tries every length for each star.
    fn matches_slowly(p: &[u8], t: &[u8]) -> bool {
        match (p, t) {
            (b"**", _) => !t.is_empty(),
            ([b'*', after @ ..], _) => {
                matches_slowly(after, t)
                    || matches!(t, [c, rest @ ..] if *c != b'/' && matches_slowly(p, rest))
            }
            ([], []) => true,
            ([a, p @ ..], [b, t @ ..]) => a == b && matches_slowly(p, t),
            _ => false,
        }
    }

    #[test]
    fn matching_is_as_defined_for_all_short_texts() {
        let topics: Vec<_> = texts("ab/", 5).into_iter().filter(|t| is_name(t)).collect();
        let patterns = texts("ab/*", 6).into_iter().filter(|p| is_pattern(p));
        let mut n_matches = 0;
        for pattern in patterns {
            for topic in &topics {
                let expected = matches_slowly(pattern.as_bytes(), topic.as_bytes());
                assert_eq!(matches(&pattern, topic), expected, "{pattern} and {topic}");
                n_matches += u32::from(expected);
            }
        }
        assert!(n_matches > 5000);
    }

    #[test]
    fn names_are_no_longer_than_the_limit() {
        let longest = "a".repeat(SIZE_MAX);
        assert!(is_name(&longest) && is_pattern(&longest));
        assert!(!is_name(&(longest.clone() + "a")) && !is_pattern(&(longest + "/**")));
    }
}
