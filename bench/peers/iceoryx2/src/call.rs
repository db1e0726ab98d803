// SPDX-License-Identifier: Apache-2.0

//! Request-response of iceoryx2 as in its own benchmark of it, with slices of bytes: both sides
//! loan without initialising, and receive in a loop. One client and one server, a buffer of one.

use iceoryx2::active_request::ActiveRequest;
use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client;
use iceoryx2::port::server::Server;
use iceoryx2::prelude::*;
use iceoryx2::request_mut::RequestMut;
use iceoryx2::response::Response;
use iceoryx2::response_mut::ResponseMut;
use iceoryx2::service::port_factory::request_response;

type S = ipc::Service;
type Bytes = [u8];

pub enum Call {
    Client {
        service: request_response::PortFactory<S, Bytes, (), Bytes, ()>,
        port: Client<S, Bytes, (), Bytes, ()>,
        loaned: Option<RequestMut<S, Bytes, (), Bytes, ()>>,
        pending: Option<PendingResponse<S, Bytes, (), Bytes, ()>>,
        taken: Option<Response<S, Bytes, ()>>,
    },
    Server {
        port: Server<S, Bytes, (), Bytes, ()>,
        taken: Option<ActiveRequest<S, Bytes, (), Bytes, ()>>,
        loaned: Option<ResponseMut<S, Bytes, ()>>,
    },
}

impl Call {
    pub fn open(node: &Node<S>, name: &str, size: usize, is_server: bool) -> Call {
        let service = node
            .service_builder(&name.try_into().expect("a name"))
            .request_response::<Bytes, Bytes>()
            .max_clients(1)
            .max_servers(1)
            .max_response_buffer_size(1)
            .open_or_create()
            .expect("a request-response service");
        if is_server {
            let builder = service.server_builder().initial_max_slice_len(size);
            Call::Server {
                port: builder.create().expect("a server"),
                taken: None,
                loaned: None,
            }
        } else {
            let builder = service.client_builder().initial_max_slice_len(size);
            Call::Client {
                port: builder.create().expect("a client"),
                service,
                loaned: None,
                pending: None,
                taken: None,
            }
        }
    }

    pub fn connected(&self) {
        if let Call::Client { service, .. } = self {
            while service.dynamic_config().number_of_servers() == 0 {
                std::thread::sleep(core::time::Duration::from_millis(1));
            }
        }
    }

    pub fn loan(&mut self, size: usize) -> *mut u8 {
        match self {
            Call::Client { port, loaned, .. } => {
                let request = port.loan_slice_uninit(size).expect("a loan");
                let request = loaned.insert(unsafe { request.assume_init() });
                request.payload_mut().as_mut_ptr()
            }
            Call::Server { taken, loaned, .. } => {
                let request = unsafe { taken.as_ref().unwrap_unchecked() };
                let response = request.loan_slice_uninit(size).expect("a loan");
                let response = loaned.insert(unsafe { response.assume_init() });
                response.payload_mut().as_mut_ptr()
            }
        }
    }

    pub fn send(&mut self) {
        match self {
            Call::Client {
                loaned, pending, ..
            } => {
                let request = unsafe { loaned.take().unwrap_unchecked() };
                *pending = Some(request.send().expect("a request"));
            }
            Call::Server { taken, loaned, .. } => {
                let response = unsafe { loaned.take().unwrap_unchecked() };
                response.send().expect("a response");
                *taken = None;
            }
        }
    }

    pub fn receive(&mut self) -> *const u8 {
        loop {
            match self {
                Call::Client { pending, taken, .. } => {
                    let waits = unsafe { pending.as_ref().unwrap_unchecked() };
                    if let Some(response) = waits.receive().expect("a response") {
                        return taken.insert(response).payload().as_ptr();
                    }
                }
                Call::Server { port, taken, .. } => {
                    if let Some(request) = port.receive().expect("a request") {
                        return taken.insert(request).payload().as_ptr();
                    }
                }
            }
        }
    }

    pub fn release(&mut self) {
        if let Call::Client { pending, taken, .. } = self {
            *taken = None;
            *pending = None;
        }
    }
}
