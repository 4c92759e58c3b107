/* server_message.c - keeps and sends the messages of a server; see server_priv.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ps/server_priv.h"

int server_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "server: out of memory");
}

int server_copy_message(struct bytes *b, const uint8_t *data, size_t n, struct err *err)
{
    if (n > b->room) {
        uint8_t *grown = realloc(b->data, n);

        if (grown == NULL)
            return server_no_memory(err);
        b->data = grown;
        b->room = n;
    }
    memcpy(b->data, data, n);
    b->n = n;
    return 0;
}

int server_keep(struct ps_server *s, struct rank *r, struct bytes *to, const uint8_t *data,
                size_t n, struct err *err)
{
    struct bytes before = *to;

    if (data == r->later.data && to != &r->later) {
        *to = r->later;
        r->later = before;
        return 0;
    }
    if (s->opts.exchange == NULL)
        return server_copy_message(to, data, n, err);
    s->opts.exchange(s->opts.arg, &to->data, &to->room);
    to->n = n;
    return 0;
}

int server_send(struct ps_server *s, uint32_t to, struct err *err)
{
    uint32_t n;
    const struct iovec *parts = ps_writer_parts(&s->out, &n);

    return parts == NULL ? server_no_memory(err) : s->opts.send(s->opts.arg, to, parts, n, err);
}

int server_unexpected(const struct ps_server *s, uint32_t from, const char *what, uint64_t step,
                      struct err *err)
{
    return err_set(err, ERR_PEER,
                   "%s of step %" PRIu64 " from point %u is not expected: the rows are of step "
                   "%" PRIu64 ", %u of %u gradients have arrived",
                   what, step, from, s->version, s->n_pushed, s->n_ranks);
}

bool server_is_pending(const struct ps_server *s)
{
    return s->store != NULL && ps_store_is_pending(s->store);
}
