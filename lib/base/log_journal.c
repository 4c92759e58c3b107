#include "base/log_journal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log_field.h"
#include "base/log_sink.h"

#define JOURNAL_SOCKET "/run/systemd/journal/socket"

/* Appends a field of the journal's protocol: NAME=value and a line break; a value that contains a
 * line break follows its name and its length (64 bits, little-endian). */
static void add_field(struct buf *b, const char *name, const char *value, size_t n)
{
    unsigned char length[8];

    buf_str(b, name);
    if (memchr(value, '\n', n) == NULL) {
        buf_str(b, "=");
    } else {
        for (unsigned i = 0; i < sizeof(length); i++)
            length[i] = (unsigned char)((uint64_t)n >> (8 * i));
        buf_str(b, "\n");
        buf_add(b, (const char *)length, sizeof(length));
    }
    buf_add(b, value, n);
    buf_str(b, "\n");
}

/* Writes TRAINERD_<KEY>: capital letters, digits and underscores, at most 64 bytes. */
static void field_name(const char *key, char out[64])
{
    size_t n = (size_t)snprintf(out, 64, "TRAINERD_%s", key);

    for (size_t i = 0; i < n && i < 63; i++)
        out[i] = (char)(isalnum((unsigned char)out[i]) ? toupper((unsigned char)out[i]) : '_');
}

static void add_fields(struct buf *b, const struct log_field *fields, uint32_t n_fields)
{
    struct buf value = { 0 };
    char name[64];

    for (uint32_t i = 0; i < n_fields; i++) {
        buf_reset(&value);
        if (fields[i].type == LOG_F_STR && fields[i].as.str != NULL)
            buf_str(&value, fields[i].as.str);
        else
            log_field_json(&value, &fields[i]);
        field_name(fields[i].key, name);
        if (!value.failed)
            add_field(b, name, value.data, value.len);
    }
    buf_fini(&value);
}

static bool send_datagram(const char *bytes, size_t n)
{
    static const struct sockaddr_un to = { .sun_family = AF_UNIX, .sun_path = JOURNAL_SOCKET };
    static int fd = -1;

    if (fd < 0)
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd >= 0 && sendto(fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL,
                             (const struct sockaddr *)&to, sizeof(to)) >= 0;
}

bool log_journal_send(struct buf *scratch, enum log_level level, const char *task,
                      const char *event, const char *message, const struct log_field *fields,
                      uint32_t n_fields)
{
    const char *prefix = log_sink_prefix(level);

    if (prefix[0] == '\0')
        return false;
    buf_reset(scratch);
    buf_printf(scratch, "PRIORITY=%c\nSYSLOG_IDENTIFIER=trainerd\n", prefix[1]);
    add_field(scratch, "TRAINERD_EVENT", event, strlen(event));
    if (task[0] != '\0')
        add_field(scratch, "TRAINERD_TASK", task, strlen(task));
    add_fields(scratch, fields, n_fields);
    add_field(scratch, "MESSAGE", message, strlen(message));
    return !scratch->failed && send_datagram(scratch->data, scratch->len);
}
