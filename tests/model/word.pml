/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words that a publisher's stream writes and streams of subscribers wait for (gpu/lib/words.h). The
 * publisher takes a free word for a message, has its stream write it in each subscriber's page after
 * the work, and frees it when the event behind that is reached. Each subscriber's stream waits until
 * the word is at least the message's value. A thread of the subscriber raises the word, too, when
 * the message is ready, when the publisher is dead, or when it has waited for too long (LATE).
 *
 * Claims: every stream goes on, whenever the publisher dies; none goes on before the work is done,
 * unless its thread has said so before.
 *
 * NS subscribers, LAST messages on two streams in turn, W words. ONEPAGE: all subscribers have the
 * same page, as the first design had it.
 */
#ifndef NS
#define NS 2
#endif
#ifndef LAST
#define LAST 3
#endif
#ifndef W
#define W 1
#endif
#define NONE 255

#ifdef ONEPAGE
#define WORD(s, m) page[word_of[m]]
#else
#define WORD(s, m) page[(s)*W + word_of[m]]
#endif

byte page[NS * W];   /* the words of each subscriber */
bool busy[W];        /* at the publisher: the word has a message that is not ready */
byte word_of[LAST];  /* of a message; NONE: it has none */
byte value_of[LAST];
bool is_published[LAST];
bool work[LAST], event[LAST], ready[LAST];
bool is_dead;            /* the publisher */
bool is_over;            /* it has published all that it will, or is dead */
bool told[NS * LAST];    /* a subscriber's thread knows the result */

/* What streams have yet to do, as numbers of messages. */
chan queue[2] = [LAST] of { byte };

inline take_word(m)
{
    word_of[m] = NONE;
    w = 0;
    do
    :: w < W && (!busy[w]
#ifdef REUSEEARLY
                 || true
#endif
                 ) ->
        word_of[m] = w;
#ifdef SAMEVALUE
        value_of[m] = 1;
#else
        value_of[m] = next[w];
        next[w] = next[w] + 1;
#endif
        busy[w] = true;
        break
    :: w < W && busy[w] -> w = w + 1
    :: w == W -> break
    od
}

active proctype publisher()
{
    byte m = 0, w;
    byte next[W] = 1;
    do
    :: m < LAST && !is_dead ->
        atomic { take_word(m); queue[m % 2] ! m };
        is_published[m] = true;
        m = m + 1
    :: m == LAST || is_dead -> break
    od
    is_over = true
}

/* It may die at any moment. */
active proctype death()
{
    if
    :: is_dead = true
    :: skip
    fi
}

/* The thread of the publisher: messages in their order. */
active proctype thread()
{
    byte m = 0;
    do
    :: m < LAST && event[m] && !is_dead ->
        ready[m] = true;
        if
        :: word_of[m] != NONE -> busy[word_of[m]] = false
        :: else
        fi;
        m = m + 1
    :: m == LAST || is_dead -> break
    od
}

inline write_words(m)
{
    i = 0;
    do
    :: word_of[m] != NONE && i < NS -> WORD(i, m) = value_of[m]; i = i + 1
    :: else -> break
    od
}

/* A stream of the publisher. What a dead publisher has queued may still run, or not. */
proctype stream(byte s)
{
    byte m, i;
    do
    :: queue[s] ? [m] ->
        queue[s] ? m;
        if
        :: is_dead -> break
        :: skip
        fi;
#ifdef WRITEFIRST
        write_words(m);
        work[m] = true;
        event[m] = true;
#else
        work[m] = true;
#ifdef EVENTFIRST
        event[m] = true;
        write_words(m);
#else
        write_words(m);
        event[m] = true;
#endif
#endif
    :: empty(queue[s]) && is_over -> break
    od
}

/* The thread of a subscriber, for one message. */
proctype waiter(byte s; byte m)
{
    byte was;
    if
    :: ready[m]
    :: is_dead
#ifdef LATE
    :: true
#endif
    fi;
    told[s * LAST + m] = true;
    if
    :: word_of[m] != NONE ->
#ifdef NORAISE
        skip
#else
#ifdef PLAINSTORE
        WORD(s, m) = value_of[m]
#else
        do /* compare and exchange */
        :: was = WORD(s, m);
           if
           :: was >= value_of[m] -> break
           :: else ->
                atomic {
                    if
                    :: WORD(s, m) == was -> WORD(s, m) = value_of[m]; break
                    :: else
                    fi
                }
           fi
        od
#endif
#endif
    :: else
    fi
}

/* A stream of a subscriber that waits for the word of one message. */
proctype reader(byte s; byte m)
{
    if
    :: is_published[m] ->
        if
        :: word_of[m] != NONE ->
            run waiter(s, m);
            atomic {
                WORD(s, m) >= value_of[m];
                assert(work[m] || told[s * LAST + m])
            }
        :: else /* a gate of the subscriber's own */
        fi
    :: is_over && !is_published[m]
    fi
}

init
{
    byte s, m;
    atomic {
        run stream(0);
        run stream(1);
        s = 0;
        do
        :: s < NS ->
            m = 0;
            do
            :: m < LAST -> run reader(s, m); m = m + 1
            :: m == LAST -> break
            od;
            s = s + 1
        :: s == NS -> break
        od
    }
}
