// SPDX-License-Identifier: Apache-2.0
//! Names and patterns of topics, beside what libdlx and the daemon take them for.

use dlx::ErrorKind;
use dlx::topic::{SIZE_MAX, is_name, is_pattern, matches};

use crate::daemon::Daemon;

const TEXTS: &[&str] = &[
    "a",
    "a/b",
    "a/b/c",
    "a/bc",
    "ab/c",
    "A_/0-9/x.y",
    "...",
    "..a",
    "a..",
    "x/.hidden",
    "**",
    "a/**",
    "a/*",
    "*/b",
    "*/*",
    "a*",
    "*b*",
    "a*c/b",
    "*/b/**",
    "*/.*",
    "x*/**",
    "*",
    "a**",
    "**a",
    "**/a",
    "a/**/b",
    "**/**",
    "***",
    "a/***",
    "a//b",
    "/a",
    "a/",
    "/",
    "",
    ".",
    "..",
    "a/..",
    "a/./b",
    "../*",
    "a b",
    "a\nb",
    "a:b",
    "a?",
    "[a]",
    "käm",
    "@a",
    "a@b",
    "a\\b",
];

#[test]
fn libdlx_has_the_same_names_and_patterns() {
    let daemon = Daemon::start();
    let client = daemon.connect();
    let long: Vec<_> = ["a", "*", "/**"]
        .iter()
        .flat_map(|end| [0, 1].map(|more| "a".repeat(SIZE_MAX - end.len() + more) + end))
        .collect();
    let texts: Vec<_> = TEXTS.iter().copied().chain(long.iter().map(String::as_str)).collect();
    for text in &texts {
        let kind = |result: dlx::Result<()>| result.map_err(|error| error.kind());
        let expected = |is_good: bool| if is_good { Ok(()) } else { Err(ErrorKind::Topic) };
        let publisher = client.publisher(text).map(|_| ());
        assert_eq!(kind(publisher), expected(is_name(text)), "{text:?}");
        let list = client.publishers(Some(text)).map(|_| ());
        assert_eq!(kind(list), expected(is_pattern(text)), "{text:?}");
    }

    let topics: Vec<_> = texts.iter().filter(|text| is_name(text)).collect();
    let _publishers: Vec<_> = topics.iter().map(|t| client.publisher(t).unwrap()).collect();
    for pattern in texts.iter().filter(|text| is_pattern(text)) {
        let listed = client.publishers(Some(pattern)).unwrap();
        let mut listed: Vec<_> = listed.into_iter().map(|publisher| publisher.topic).collect();
        let mut expected: Vec<_> =
            topics.iter().filter(|topic| matches(pattern, topic)).map(|t| t.to_string()).collect();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected, "{pattern}");
    }
}
