/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_WORDS_H
#define DLX_GPU_WORDS_H

/*
 * Order without a CPU (docs/decisions/0045; off unless DLX_GPU_WORDS=1 in the publisher's
 * environment). The publisher's stream writes a word after the work of a message, and a stream of a
 * subscriber waits for that word: no thread is between the two works.
 *
 * Each subscription has a page of its own, for each publisher, which the publisher makes when it is
 * asked (gpu/lib/serve.h). For a message the publisher takes a word that is free, by its number,
 * and its stream writes that word in all pages. The manifest has the number and the value. A word
 * is free again when the event behind the write is reached, so a word only rises.
 *
 *     publisher's stream:    work --> words --> event       its thread: event --> READY, word free
 *     subscriber's stream:   waits until the word has the value --> work
 *     subscriber's thread:   READY, or the publisher is gone, or too late --> raises the word
 *
 * The subscriber's thread raises the word whatever becomes of the publisher, so a dead publisher
 * hangs no stream (tests/model/word.pml). Where there is no word, as for a message that was there
 * before the page, the stream waits for that thread alone. Subscribers do not share a page: one
 * that is tired of waiting would let the streams of others go on.
 *
 *     reader:   NONE --ask--> ASKED --the page comes--> OPEN
 *                  \            \
 *                   +------------+--> FAILED    streams wait for the thread, as ever
 */

#include "client/control/client.h"
#include "gpu/stream.h"
#include <dlpack/dlpack.h>

struct dlx_gpu_words;
struct dlx_gpu_words_reader;

/* Whoever asks a publisher for a page asks for the allocation with this id. */
#define DLX_GPU_WORDS_ID UINT64_MAX

/* What a manifest says where no word is written: whoever wants one may ask for a page. */
#define DLX_GPU_WORDS_OFFERED 1024U

/* ---- publisher ------------------------------------------------------------------------------- */

/* Does the environment ask for it? */
bool dlx__gpu_words_are_wanted(void);
/* `device`: the one whose streams write first. Returns NULL without memory. */
struct dlx_gpu_words *dlx__gpu_words_new(DLDevice device);
/* All its writes are done. Returns NULL; NULL is fine. */
struct dlx_gpu_words *dlx__gpu_words_end(struct dlx_gpu_words *words);
/* A reader asks on this socket. Any thread. */
void dlx__gpu_words_ask(struct dlx_gpu_words *words, int take_sock);
/*
 * Have the event's stream write a word for a message, in the pages of all who have asked. Returns
 * what the manifest says. DLX_GPU_WORDS_OFFERED: no word will be written, because nobody has a
 * page, all words are taken, or the driver refused. `*ret_busy` is to be cleared when the event is
 * reached.
 */
uint32_t dlx__gpu_words_write(struct dlx_gpu_words *words, const struct dlx_gpu_event *event,
                              void *stream, atomic_bool **ret_busy);

/* ---- subscriber ------------------------------------------------------------------------------ */

/* Returns NULL without memory. */
struct dlx_gpu_words_reader *dlx__gpu_words_reader_new(void);
/* Its streams may still wait: the page goes when they have gone on. NULL is fine. */
void dlx__gpu_words_reader_free(struct dlx_gpu_words_reader *reader);
/*
 * The word of a message, `said` by its manifest, for a stream of the device. Asks the publisher at
 * the other end of the link for the page first, as long as calls may take, and does not wait for
 * the page itself. Returns false if there is none, or not yet. Any thread.
 */
bool dlx__gpu_words_find(struct dlx_gpu_words_reader *reader, struct dlx_client *c, uint64_t link,
                         uint64_t origin, DLDevice device, uint32_t said, struct dlx_gpu_word *ret);

#endif
