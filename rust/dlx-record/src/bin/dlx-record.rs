// SPDX-License-Identifier: Apache-2.0
//! Records topics of dlpackd in an MCAP file.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use dlx_record::cli::{DaemonArgs, Stop, amount, end, print};
use dlx_record::reader::{Recording, Summary};
use dlx_record::recorder::{Options, record};
use dlx_record::{Result, schema};
use serde_json::json;

#[derive(Clone, Copy, ValueEnum)]
enum Gpu {
    Refuse,
    Stage,
}

#[derive(Clone, Copy, ValueEnum)]
enum Compression {
    None,
    Lz4,
    Zstd,
}

/// Record topics of dlpackd in an MCAP file.
///
/// Ctrl-C ends the recording. A recording whose recorder was killed can be read up to its last
/// second. dlx-play publishes it again.
#[derive(Parser)]
#[command(name = "dlx-record", version)]
struct Args {
    /// Topics, or patterns such as 'cam/*' and '**'
    #[arg(value_name = "TOPIC", required_unless_present = "info")]
    topics: Vec<String>,
    /// The file to write
    #[arg(short, long, value_name = "FILE", required_unless_present = "info")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(short, long)]
    force: bool,
    /// How to compress
    #[arg(short, long, value_enum, default_value = "none")]
    compression: Compression,
    /// Let publishers wait for the recorder instead of dropping messages
    #[arg(short, long)]
    reliable: bool,
    /// Record images as any other tensors, not as foxglove.RawImage
    #[arg(long)]
    no_images: bool,
    /// Refuse tensors on a GPU, or copy them to memory of the host
    #[arg(long, value_enum, default_value = "refuse")]
    gpu: Gpu,
    /// End after so long: a number of seconds, or a time like 100ms and 5min
    #[arg(short, long, value_name = "TIME", value_parser = dlx::parse_time)]
    duration: Option<Duration>,
    /// End after so many messages
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Memory for messages while the disk is busy, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    buffer: usize,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Say what a file has
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["topics", "output"])]
    info: Option<PathBuf>,
    /// With --info: as JSON
    #[arg(long, requires = "info")]
    json: bool,
}

fn run(args: Args) -> Result<()> {
    if let Some(path) = args.info {
        let recording = Recording::open(&path)?;
        let summary = recording.summary();
        if args.json {
            print(format_args!("{:#}\n", to_json(&summary)))?;
        } else {
            print(format_args!("{}", to_text(recording.name(), &summary)))?;
        }
        return Ok(());
    }
    let options = Options {
        topics: args.topics,
        output: args.output.expect("clap has asked for it"),
        overwrites: args.force,
        compression: match args.compression {
            Compression::None => None,
            Compression::Lz4 => Some(mcap::Compression::Lz4),
            Compression::Zstd => Some(mcap::Compression::Zstd),
        },
        reliable: args.reliable,
        finds_images: !args.no_images,
        gpu: match args.gpu {
            Gpu::Refuse => schema::Gpu::Refuse,
            Gpu::Stage => schema::Gpu::Stage,
        },
        duration: args.duration,
        messages: args.messages,
        buffer: args.buffer.saturating_mul(1 << 20),
    };
    let stop = Stop::on_signals()?;
    let client = stop.connect(&args.daemon, "dlx-record")?;
    let counts = record(&client, &options, &stop)?;
    print(format_args!(
        "{}: {} messages, {}, {} missed, {} refused\n",
        options.output.display(),
        counts.messages,
        amount(counts.bytes),
        counts.missed,
        counts.refused
    ))
}

fn to_text(name: &str, summary: &Summary) -> String {
    let mut text = format!("{name}: {}", amount(summary.bytes));
    if let Some((first, last)) = summary.times {
        let seconds = (last - first) as f64 / 1e9;
        text += &format!(", {seconds:.1} s from {}", schema::time_text(first));
    }
    text += "\n";
    if let Some(why) = &summary.ends_early {
        text += &format!("its end is missing: {why}\n");
    }
    let mut rows = vec![
        ["topic", "messages", "missed", "rate", "bytes", "schema", "first message"]
            .map(String::from),
    ];
    for ((topic, schema), counts) in &summary.topics {
        let seconds = (counts.times.1 - counts.times.0) as f64 / 1e9;
        let rate = if seconds > 0.0 {
            format!("{:.1}/s", (counts.messages - 1) as f64 / seconds)
        } else {
            "-".into()
        };
        let what = match counts.invalid {
            0 => counts.what.clone(),
            n => format!("{} ({n} invalid)", counts.what),
        };
        rows.push([
            topic.clone(),
            counts.messages.to_string(),
            counts.missed.to_string(),
            rate,
            amount(counts.bytes),
            schema.clone(),
            what,
        ]);
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0))
        .collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| {
            if (1..=4).contains(&i) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text += "\n";
    }
    text
}

fn to_json(summary: &Summary) -> serde_json::Value {
    let topics: Vec<_> = summary
        .topics
        .iter()
        .map(|((topic, schema), counts)| {
            json!({
                "topic": topic,
                "schema": schema,
                "messages": counts.messages,
                "missed": counts.missed,
                "bytes": counts.bytes,
                "first_ns": counts.times.0,
                "last_ns": counts.times.1,
                "what": counts.what,
                "invalid": counts.invalid,
            })
        })
        .collect();
    json!({
        "bytes": summary.bytes,
        "first_ns": summary.times.map(|times| times.0),
        "last_ns": summary.times.map(|times| times.1),
        "ends_early": summary.ends_early,
        "topics": topics,
    })
}

fn main() -> ExitCode {
    end("dlx-record", run(Args::parse()))
}
