/* coding.c - see coding.h. */
#include "train/coding.h"

#include <string.h>

#include "base/err.h"
#include "code/code.h"
#include "device/device.h"
#include "train/agree_message.h"
#include "train/phases.h"
#include "train/task.h"

int coding_check(const struct train_opts *o, struct err *err)
{
    uint32_t groups = o->code.groups, lanes = o->lanes;

    if (o->code.kind == CODE_NONE || o->only_evaluates)
        return 0;
    if (o->devices[0].kind != DEVICE_CPU)
        return err_set(err, ERR_UNSUPPORTED,
                       "/communication/compression/code: gradients of GPUs cannot be compressed: start the "
                       "task with --devices cpu, or use \"none\"");
    if (phases_have_local(&o->run))
        return err_set(err, ERR_UNSUPPORTED,
                       "/communication/compression/code: compression does not support phases with "
                       "\"local_sgd\" (/train/phases): remove them, or use \"none\"");
    if (groups == 0 || (groups & (groups - 1)) != 0 || (lanes & (lanes - 1)) != 0 || groups > lanes)
        return err_set(err, ERR_INPUT,
                       "/communication/compression/groups: %u groups cannot have equal aligned blocks of %u "
                       "lanes: use a power of two of lanes that is at least the number of groups",
                       groups, lanes);
    return 0;
}

void coding_adopt(struct train *t, const struct agreement *a)
{
    const struct code_settings *code = &t->opts->code;
    bool on = code->when == CODE_ALWAYS;

    if (code->when == CODE_NETWORK)
        on = t->state.facts.coding == CODING_UNDECIDED ? a->uses_network
                                                       : t->state.facts.coding == CODING_ON;
    t->engine->group.codes = code->kind != CODE_NONE && on;
}

enum coding coding_fact(const struct train *t)
{
    if (t->opts->code.kind == CODE_NONE)
        return CODING_UNDECIDED;
    return t->engine->group.codes ? CODING_ON : CODING_OFF;
}

const char *coding_text(const struct train_opts *o, enum coding c)
{
    return c == CODING_UNDECIDED ? "" : c == CODING_OFF ? "none" : code_name(o->code.kind);
}

enum coding coding_from_text(const struct train_opts *o, const char *text)
{
    if (o->code.kind == CODE_NONE || text[0] == '\0')
        return CODING_UNDECIDED;
    return strcmp(text, "none") == 0 ? CODING_OFF : CODING_ON;
}
