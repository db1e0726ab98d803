// SPDX-License-Identifier: Apache-2.0

/*
 * gRPC over a Unix socket, for calls alone: a unary method with a field of bytes, without a limit
 * of size. The client calls and waits (the synchronous stub). The server has one completion queue,
 * on the main thread, which is faster than a synchronous one. Messages are kept and filled again,
 * so that their memory is not made anew.
 */

#include "bench/peers/peer.h"
#include "bench/peers/peer_grpc.grpc.pb.cc"
#include "bench/peers/peer_grpc.pb.cc"

#include <grpcpp/grpcpp.h>
#include <memory>
#include <optional>
#include <string>

extern "C" {
void bm_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
const char *bm_text(const char *name, const char *fallback);
}

namespace
{

size_t size;
bench::Payload sent, received;

// The client.
std::unique_ptr<bench::Peer::Stub> stub;

// The server. A call is two events of its queue: the request came, the reply is on its way.
char asked, answered;
struct Call {
    grpc::ServerContext context;
    grpc::ServerAsyncResponseWriter<bench::Payload> writer{&context};
};
bench::Peer::AsyncService service;
std::unique_ptr<grpc::ServerCompletionQueue> queue;
std::unique_ptr<grpc::Server> server;
std::optional<Call> call;

std::string address(const peer_setup *s)
{
    return std::string("unix:") + bm_text("folder", "/tmp") + "/" + s->name + "-grpc";
}

void serve(const peer_setup *s)
{
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(s), grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(-1).SetMaxSendMessageSize(-1);
    builder.RegisterService(&service);
    queue = builder.AddCompletionQueue();
    server = builder.BuildAndStart();
    if (!server)
        bm_fail("no gRPC server at %s", address(s).c_str());
}

void connect(const peer_setup *s)
{
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(-1);
    args.SetMaxSendMessageSize(-1);
    stub = bench::Peer::NewStub(
        grpc::CreateCustomChannel(address(s), grpc::InsecureChannelCredentials(), args));
}

} // namespace

void peer_prepare(const peer_setup *s)
{
    if (!s->is_call || !s->is_blocking)
        bm_fail("gRPC is measured with --what call --mode block");
    size = s->size;
}

void peer_open_out(const peer_setup *s)
{
    if (s->out == 1)
        serve(s);
}

void peer_open_in(const peer_setup *s)
{
    if (s->in == 1)
        connect(s);
}

void peer_connected(const peer_setup *) {}

void *peer_loan()
{
    std::string *data = sent.mutable_data();
    data->resize(size);
    return data->data();
}

void peer_send()
{
    if (server)
        call->writer.Finish(sent, grpc::Status::OK, &answered);
}

const void *peer_receive()
{
    if (stub) {
        grpc::ClientContext context;
        context.set_wait_for_ready(true); // the first one connects
        grpc::Status status = stub->Call(&context, sent, &received);
        if (!status.ok())
            bm_fail("a call: %s", status.error_message().c_str());
    } else {
        void *tag = nullptr;
        bool ok = true;
        if (call)
            while (queue->Next(&tag, &ok) && tag != &answered)
                continue;
        call.emplace();
        service.RequestCall(&call->context, &received, &call->writer, queue.get(), queue.get(),
                            &asked);
        if (!queue->Next(&tag, &ok) || !ok)
            bm_fail("a request did not come");
    }
    if (received.data().size() != size)
        bm_fail("a message of %zu bytes instead of %zu", received.data().size(), size);
    return received.data().data();
}

void peer_release() {}

void peer_close()
{
    stub.reset();
    if (!server)
        return;
    server->Shutdown(std::chrono::system_clock::now());
    queue->Shutdown();
    void *tag;
    bool ok;
    while (queue->Next(&tag, &ok))
        continue;
    call.reset();
    server.reset();
}

const char *peer_version()
{
    static const std::string version = "gRPC " + grpc::Version();
    return version.c_str();
}
