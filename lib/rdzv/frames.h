/* frames.h - follows the HTTP/2 frames that a client sends and adds up what they cost the server.
 *
 * The scanner reads frame headers (RFC 9113, section 4.1: 24 bits of length, 8 of type, 8 of flags,
 * 32 of stream) and skips payloads. The bytes may be split into calls in any way. Pure: no I/O, no
 * memory of its own. Threads: one at a time. */
#ifndef RDZV_FRAMES_H
#define RDZV_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FRAMES_PREFACE_BYTES = 24, FRAMES_HEAD_BYTES = 9 };

struct frames { /* zero-initialized at the start of a connection */
    uint8_t n_preface;                /* bytes of the connection preface that were read */
    uint8_t n_head;                   /* bytes of `head` that were read */
    uint8_t head[FRAMES_HEAD_BYTES];
    uint32_t rest;                    /* bytes of the payload that were not read yet */
};

extern const char frames_preface[]; /* FRAMES_PREFACE_BYTES, and a NUL */

bool frames_has_preface(const struct frames *f);

/* Reads n bytes and adds their cost to *cost, in the units of admission.h. Returns false if the
 * bytes do not begin with the preface of HTTP/2 (RFC 9113, section 3.4): the client uses another
 * protocol, and the scanner must not be used again. */
bool frames_read(struct frames *f, const uint8_t *bytes, size_t n, double *cost);

#endif
