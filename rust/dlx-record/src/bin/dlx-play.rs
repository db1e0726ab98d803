// SPDX-License-Identifier: Apache-2.0
//! Publishes what an MCAP file has.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use dlx_record::Result;
use dlx_record::cli::{DaemonArgs, Stop, end, print, say};
use dlx_record::player::{Options, play};

/// Publish what a recording has, with the time between messages as it was.
#[derive(Parser)]
#[command(name = "dlx-play", version)]
struct Args {
    /// The recording
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// Play only this topic, or those of a pattern such as 'cam/*'; may be given several times
    #[arg(short, long, value_name = "TOPIC", value_parser = pattern)]
    topics: Vec<String>,
    /// Put in front of each topic, such as 'replay/'
    #[arg(short, long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// How much faster than it was; inf: as fast as possible
    #[arg(long, default_value_t = 1.0, value_parser = rate)]
    rate: f64,
    /// Begin again at the end, until Ctrl-C
    #[arg(short = 'l', long = "loop")]
    repeats: bool,
    /// Wait for reliable subscribers instead of dropping messages
    #[arg(short, long)]
    reliable: bool,
    /// Wait for so many subscribers of a topic before its first message
    #[arg(short, long, value_name = "SUBSCRIBERS", default_value_t = 0)]
    wait: u32,
    #[command(flatten)]
    daemon: DaemonArgs,
}

fn pattern(text: &str) -> std::result::Result<String, String> {
    if dlx::topic::is_pattern(text) {
        Ok(text.into())
    } else {
        Err("neither a topic nor a pattern such as 'cam/*' or '**'".into())
    }
}

fn rate(text: &str) -> std::result::Result<f64, String> {
    let rate = text.parse::<f64>().map_err(|error| error.to_string())?;
    if rate > 0.0 { Ok(rate) } else { Err("a rate is above 0".into()) }
}

fn run(args: Args) -> Result<()> {
    let options = Options {
        input: args.input,
        topics: args.topics,
        prefix: args.prefix,
        rate: args.rate,
        repeats: args.repeats,
        reliable: args.reliable,
        subscribers: args.wait,
    };
    let stop = Stop::on_signals()?;
    let client = stop.connect(&args.daemon, "dlx-play")?;
    let counts = play(&client, &options, &stop)?;
    for (schema, n) in &counts.foreign {
        say(format_args!("dlx-play: {n} messages of schema {schema:?} were not played\n"));
    }
    if let Some(why) = &counts.why {
        say(format_args!("dlx-play: {} messages were not played: {why}\n", counts.refused));
    }
    if let Some(why) = &counts.ends_early {
        let file = options.input.display();
        say(format_args!("dlx-play: the end of {file} is missing: {why}\n"));
    }
    print(format_args!(
        "{}: {} messages, at most {:.1} ms late\n",
        options.input.display(),
        counts.messages,
        counts.late.as_secs_f64() * 1e3
    ))
}

fn main() -> ExitCode {
    end("dlx-play", run(Args::parse()))
}
