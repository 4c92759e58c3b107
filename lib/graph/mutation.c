/* mutation.c - notes the buffers that a module changes in each call, as spectral normalization does
 * with its vectors. PyTorch's exporter lists them in the signature ("div: BUFFER_MUTATION
 * target='fc._u'"), but the file does not store the new values, so each call begins with those of
 * the file and the network trains differently. A module that changes a parameter itself
 * ("PARAMETER_MUTATION", nn.Embedding(max_norm)) is refused: an update would follow that the file does
 * not have. */
#include "graph/metadata.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "graph/graph_priv.h"

static const char mark[] = "BUFFER_MUTATION target='";
static const char parameter_mark[] = "PARAMETER_MUTATION target='";

/* Returns whether a BatchNormalization node updates the buffer itself, or whether it counts
 * steps. */
static bool is_of_batch_norm(const char *name, size_t n)
{
    static const char *const ends[] = { "running_mean", "running_var", "num_batches_tracked" };

    for (size_t k = 0; k < sizeof(ends) / sizeof(ends[0]); k++) {
        size_t length = strlen(ends[k]);

        if (n >= length && memcmp(name + n - length, ends[k], length) == 0)
            return true;
    }
    return false;
}

int graph_note_mutations(struct graph *g, const char *signature, struct err *err)
{
    const char *at = signature != NULL ? strstr(signature, "# outputs") : NULL, *first = NULL;
    size_t first_bytes = 0;
    uint32_t n = 0;
    const char *changed = at != NULL ? strstr(at, parameter_mark) : NULL;

    if (changed != NULL) {
        changed += sizeof(parameter_mark) - 1;
        first_bytes = strcspn(changed, "'\n");
        return err_set(err, ERR_UNSUPPORTED,
                       "the module changes its parameter '%.*s' in each call (as nn.Embedding(max_norm) does), and "
                       "the file does not store the new values; export a module that leaves its parameters to the "
                       "optimizer (max_norm=None)",
                       (int)(first_bytes < 200 ? first_bytes : 200), changed);
    }
    while (at != NULL && (at = strstr(at, mark)) != NULL) {
        const char *name = at + sizeof(mark) - 1, *end = strpbrk(name, "'\n");

        if (end == NULL)
            break;
        if (!is_of_batch_norm(name, (size_t)(end - name)) && n++ == 0) {
            first = name;
            first_bytes = (size_t)(end - name);
        }
        at = end;
    }
    if (n == 0)
        return 0;
    return graph_note(g, err,
                      "in train() the module changes %" PRIu32 " of its buffers in each call (first '%.*s'); the "
                      "file does not store the new values, so each call begins with those of the file and the "
                      "network trains differently from the module: export it in eval() if its buffers must not "
                      "change",
                      n, (int)(first_bytes < 200 ? first_bytes : 200), first);
}
