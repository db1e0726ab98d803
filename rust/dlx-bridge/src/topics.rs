// SPDX-License-Identifier: Apache-2.0
//! Names of topics, and patterns of them as libdlx has them.

use crate::wire::TOPIC_MAX;

/// May a name or pattern be? Segments of `[A-Za-z0-9_.-]` between '/'; in a pattern also '*', and
/// "**" as the last one.
fn is_made_of(text: &str, extra: &str) -> bool {
    !text.is_empty()
        && text.len() <= TOPIC_MAX
        && text.split('/').all(|segment| {
            !matches!(segment, "" | "." | "..")
                && segment
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c) || extra.contains(c))
        })
}

pub fn is_topic(text: &str) -> bool {
    is_made_of(text, "")
}

pub fn is_pattern(text: &str) -> bool {
    let last = text.rsplit('/').next().unwrap_or_default();
    is_made_of(text, "*") && text.split('/').all(|s| !s.contains("**")) || {
        last == "**" && (text == "**" || is_pattern(&text[..text.len() - 3]))
    }
}

/// Does a topic match a pattern? '*' stands for any characters within a segment, and "**" as the
/// last segment for one or more segments.
pub fn matches(pattern: &str, topic: &str) -> bool {
    match (pattern.split_once('/'), topic.split_once('/')) {
        _ if pattern == "**" => !topic.is_empty(),
        (Some((p, patterns)), Some((t, topics))) => {
            segment_matches(p.as_bytes(), t.as_bytes()) && matches(patterns, topics)
        }
        (None, None) => segment_matches(pattern.as_bytes(), topic.as_bytes()),
        _ => false,
    }
}

/// Goes back to the last '*' where the rest does not fit: no more than that is ever needed.
fn segment_matches(pattern: &[u8], segment: &[u8]) -> bool {
    let (mut p, mut s, mut star) = (0, 0, None);
    while s < segment.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, s));
            p += 1;
        } else if pattern.get(p) == Some(&segment[s]) {
            (p, s) = (p + 1, s + 1);
        } else if let Some((star_p, star_s)) = star {
            star = Some((star_p, star_s + 1));
            (p, s) = (star_p + 1, star_s + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_libdlx() {
        for (pattern, topic, expected) in [
            ("cam/front", "cam/front", true),
            ("cam/front", "cam/front/left", false),
            ("cam/*", "cam/front", true),
            ("cam/*", "cam/front/left", false),
            ("cam/*", "cam", false),
            ("cam/f*t", "cam/front", true),
            ("cam/f*t", "cam/frond", false),
            ("c*a*m", "cxaxxaxm", true),
            ("*/front", "cam/front", true),
            ("**", "cam/front/left", true),
            ("cam/**", "cam/front/left", true),
            ("cam/**", "cam", false),
            ("*", "", false),
        ] {
            let matched = matches(pattern, topic) && is_topic(topic);
            assert_eq!(matched, expected, "{pattern} and {topic}");
        }
    }

    #[test]
    fn names_are_those_of_libdlx() {
        assert!(is_topic("cam/front-1.x") && is_pattern("cam/f*/**") && is_pattern("**"));
        for bad in ["", "/cam", "cam//x", "cam/..", "cam/*", "käm", "a b"] {
            assert!(!is_topic(bad), "{bad}");
        }
        for bad in ["**/cam", "a**", "cam/**/x", "", "cam/?"] {
            assert!(!is_pattern(bad), "{bad}");
        }
    }
}
