/* saver_chunk.c - writes the rows that a saver has collected; see saver_priv.h. */
#include <errno.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "ps/saver_priv.h"

int saver_flush(struct saver *s)
{
    size_t done = 0;

    if (s->n_chunk == 0)
        return 0;
    s->sums[s->file] +=
        ckpt_shard_sum(s->chunk, s->n_chunk / s->row_bytes, s->row_bytes, s->chunk_at);
    while (done < s->n_chunk) {
        ssize_t n = FAULT_TRY("ps.save", pwrite(s->fds[s->file], s->chunk + done, s->n_chunk - done,
                                                (off_t)(s->chunk_at + done)));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(s->err, errno, "write '%s'", s->path);
        done += (size_t)n;
    }
    s->n_chunk = 0;
    ps_background_progress(&s->base);
    return 0;
}
