// SPDX-License-Identifier: Apache-2.0
//! Publish one tensor, as examples/hello_publish.c does: hello_subscribe in C, Rust or Python,
//! started before, receives it without a copy.

fn main() -> dlx::Result<()> {
    let client = dlx::Client::connect()?;
    let publisher = client.publisher("hello")?;
    publisher.wait(1, dlx::FOREVER)?;
    let mut x = publisher.alloc::<f32>(&[2, 3])?; // already in shared memory
    for (i, x) in x.iter_mut().enumerate() {
        *x = i as f32 / 2.0;
    }
    publisher.publish(x)?; // passes ownership on success
    Ok(())
}
