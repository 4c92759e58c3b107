/* frames.c - see frames.h. */
#include "rdzv/frames.h"

#include <string.h>

const char frames_preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum { DATA = 0, RST_STREAM = 3, WINDOW_UPDATE = 8 };

/* A stream that is opened and reset costs the server far more than its two frames cost the client
 * (CVE-2023-44487). */
static double cost_of(uint8_t type)
{
    switch (type) {
    case DATA:
    case WINDOW_UPDATE:
        return 0.25;
    case RST_STREAM:
        return 4;
    default:
        return 1;
    }
}

bool frames_has_preface(const struct frames *f)
{
    return f->n_preface == FRAMES_PREFACE_BYTES;
}

bool frames_read(struct frames *f, const uint8_t *bytes, size_t n, double *cost)
{
    size_t i = 0;

    for (; i < n && f->n_preface < FRAMES_PREFACE_BYTES; i++)
        if (bytes[i] != (uint8_t)frames_preface[f->n_preface++])
            return false;
    while (i < n) {
        if (f->rest > 0) {
            size_t skipped = n - i < f->rest ? n - i : f->rest;

            *cost += (double)skipped / 16384;
            f->rest -= (uint32_t)skipped;
            i += skipped;
            continue;
        }
        f->head[f->n_head++] = bytes[i++];
        if (f->n_head == FRAMES_HEAD_BYTES) {
            f->n_head = 0;
            f->rest = (uint32_t)f->head[0] << 16 | (uint32_t)f->head[1] << 8 | f->head[2];
            *cost += cost_of(f->head[3]);
        }
    }
    return true;
}
