// SPDX-License-Identifier: Apache-2.0
//! Patterns of topics, for files: those of a daemon are the daemon's.

/// Does a pattern match a topic? '*' stands for any characters of its segment, and a last segment
/// "**" for one or more segments, as everywhere in dlpackd.
pub(crate) fn matches(pattern: &str, topic: &str) -> bool {
    match (pattern.split_once('/'), topic.split_once('/')) {
        (None, _) if pattern == "**" => !topic.is_empty(),
        (None, None) => segment_matches(pattern.as_bytes(), topic.as_bytes()),
        (Some((p, patterns)), Some((t, topics))) => {
            segment_matches(p.as_bytes(), t.as_bytes()) && matches(patterns, topics)
        }
        _ => false,
    }
}

/// Takes time up to the product of the lengths: of several '*', only the last one is tried again.
fn segment_matches(pattern: &[u8], segment: &[u8]) -> bool {
    let (mut p, mut s, mut star) = (0, 0, None);
    while s < segment.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, s));
            p += 1;
        } else if pattern.get(p) == Some(&segment[s]) {
            (p, s) = (p + 1, s + 1);
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            (p, s) = (at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_those_of_the_daemon() {
        for (pattern, topic) in [
            ("cam", "cam"),
            ("cam/*", "cam/left"),
            ("*/left", "cam/left"),
            ("c*m/l*t", "cam/left"),
            ("c**m/*", "cam/left"),
            ("**", "cam/left/raw"),
            ("cam/**", "cam/left/raw"),
            ("a*b*c", "a-b-b-c"),
        ] {
            assert!(matches(pattern, topic), "{pattern} {topic}");
        }
        for (pattern, topic) in [
            ("cam", "cam/left"),
            ("cam/*", "cam"),
            ("*", "cam/left"),
            ("cam/**", "cam"),
            ("a*b", "a-b-c"),
            ("", "cam"),
        ] {
            assert!(!matches(pattern, topic), "{pattern} {topic}");
        }
    }
}
