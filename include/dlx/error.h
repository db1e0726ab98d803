/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_ERROR_H
#define DLX_ERROR_H

/**
 * The error codes, which the protocol, the library and the command line share.
 *
 * Every function of libdlx that can fail returns 0 or one of these negative codes. The numbers are
 * part of the ABI and of the protocol: new codes are added at the end, and none is reused.
 * dlx_strerror() gives the text of a code. dlx_errmsg() describes one particular failure, with its
 * names, numbers and limits.
 *
 * X(name, number, text)
 */
#define DLX_ERRORS(X)                                                                              \
    X(INVALID, -1, "invalid argument")                                                             \
    X(NO_MEMORY, -2, "out of memory")                                                              \
    X(TIMEOUT, -3, "timed out")                                                                    \
    X(EMPTY, -4, "no message available")                                                           \
    X(NO_DAEMON, -5, "no dlpackd is listening")                                                    \
    X(DISCONNECTED, -6, "the connection to dlpackd is lost")                                       \
    X(PROTOCOL, -7, "protocol violation")                                                          \
    X(VERSION, -8, "protocol or ABI version not supported")                                        \
    X(ACCESS, -9, "permission denied")                                                             \
    X(TOPIC, -10, "invalid topic name")                                                            \
    X(LIMIT, -11, "limit exceeded")                                                                \
    X(DEVICE, -12, "device type cannot be carried")                                                \
    X(SHAPE, -13, "invalid shape, strides or data type")                                           \
    X(READ_ONLY, -14, "tensor is read-only")                                                       \
    X(FULL, -15, "a reliable subscriber is too far behind")                                        \
    X(TOO_MANY_HELD, -16, "too many messages held")                                                \
    X(PUBLISHER_GONE, -17, "the publisher is gone")                                                \
    X(PUBLISHER_NOT_RESPONDING, -18, "the publisher does not pick up new subscribers")             \
    X(BAD_PEER, -19, "a peer wrote invalid values into shared memory")                             \
    X(FORKED, -20, "handle was created by the parent process")                                     \
    X(NOT_FOUND, -21, "no such object")                                                            \
    X(IN_USE, -22, "already in use")                                                               \
    X(KERNEL, -23, "the kernel lacks a feature that is needed")                                    \
    X(FD_LIMIT, -24, "too many open file descriptors")                                             \
    X(SYSTEM, -25, "system call failed")                                                           \
    X(WOULD_COPY, -26, "publishing would copy the tensor")                                         \
    X(INTERRUPTED, -27, "the wait was interrupted")                                                \
    X(QOS, -28, "the publisher does not offer what the subscriber asks for")                       \
    X(WORKER_GONE, -29, "the worker that had the request is gone")                                 \
    X(CALL_FAILED, -30, "the worker answered with an error")                                       \
    X(KICKED, -31, "an operator has disconnected this program")

enum dlx_error {
    DLX_OK = 0,
#define DLX_ERROR_ENUM(name, number, text) DLX_E_##name = number,
    DLX_ERRORS(DLX_ERROR_ENUM)
#undef DLX_ERROR_ENUM
};

#endif
