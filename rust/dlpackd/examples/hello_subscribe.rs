// SPDX-License-Identifier: Apache-2.0
//! Receive one tensor of hello_publish in C, Rust or Python, and print it.

fn main() -> dlx::Result<()> {
    let client = dlx::Client::connect()?;
    let subscription = client.subscribe("hello")?;
    let x = subscription.take()?.tensor::<f32>(0)?; // it holds its memory by itself
    print!("{:?}:", x.shape());
    for x in x.iter() {
        print!(" {x:.1}");
    }
    println!();
    Ok(())
}
