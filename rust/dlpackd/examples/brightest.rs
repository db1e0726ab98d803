// SPDX-License-Identifier: Apache-2.0
//! A worker for python/examples/ask.py, and any other caller of its service: it finds the brightest
//! pixel of a frame.

use dlx::Set;

fn main() -> dlx::Result<()> {
    let client = dlx::Client::connect()?;
    let service = client.service("svc/brightest")?;
    loop {
        let request = service.take()?;
        let frame = request.message();
        match place_of_brightest(&frame) {
            Ok(place) => {
                let mut answer = request.alloc::<i64>(&[place.len()])?;
                answer.copy_from_slice(&place);
                let meta = format!(r#"{{"pid":{}}}"#, std::process::id());
                request.reply(Set::new().tensor("", answer).meta(meta))?;
            }
            Err(e) => request.reply_error(1, &e.to_string())?,
        }
    }
}

fn place_of_brightest(frame: &dlx::Message) -> dlx::Result<Vec<i64>> {
    let pixels = frame.slice::<u8>(0)?;
    let shape = frame.layout(0).map_or(&[][..], |layout| layout.shape);
    // the first one of the brightest, as NumPy's argmax() says
    let brightest = pixels.iter().max();
    let mut flat = pixels.iter().position(|p| Some(p) == brightest).unwrap_or(0);
    let mut place = vec![0; shape.len()];
    for (at, &size) in place.iter_mut().zip(shape).rev() {
        *at = (flat % size.max(1)) as i64;
        flat /= size.max(1);
    }
    Ok(place)
}
