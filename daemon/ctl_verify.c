#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "ckpt/ckpt.h"
#include "daemon/ctl.h"

struct count {
    unsigned good, bad;
};

static void one(void *arg, const struct ckpt_info *info, int rc, const char *why)
{
    struct count *c = arg;
    char size[32];

    if (rc < 0) {
        c->bad++;
        printf("BAD  %s: %s\n", info->path, why);
        return;
    }
    c->good++;
    text_bytes(size, sizeof(size), info->bytes);
    printf("ok   %s: step %llu, epoch %llu, %s%s\n", info->path,
           (unsigned long long)info->meta.step, (unsigned long long)info->meta.epoch, size,
           info->meta.complete ? ", job complete" : "");
}

/* Recognizes a checkpoint by its name, as the readers do: a damaged one may lack any file. */
static bool is_checkpoint(const char *path)
{
    size_t n = strlen(path);
    const char *name;

    while (n > 1 && path[n - 1] == '/')
        n--;
    name = memrchr(path, '/', n);
    return text_starts(name != NULL ? name + 1 : path, "step-");
}

int ctl_verify(int argc, char **argv)
{
    struct count c = { 0, 0 };
    struct err err;

    if (argc != 2 || strcmp(argv[1], "--help") == 0) {
        bool wants_help = argc == 2;

        fprintf(wants_help ? stdout : stderr,
                "usage: trainerctl verify DIR\n\nReads every checkpoint (step-*) in DIR, or DIR "
                "itself if it is "
                "one, compares sizes and\nchecksums with the manifest and the safetensors headers "
                "with the data. "
                "Exit code 0: all\nare good; 1: one is not, or there is none.\n");
        return wants_help ? CTL_OK : CTL_USAGE;
    }
    if (fs_check_path(argv[1], &err) < 0) {
        fprintf(stderr, "trainerctl: %s\n", err.text);
        return CTL_USAGE;
    }
    if (is_checkpoint(argv[1])) {
        struct ckpt_info info;
        int rc = ckpt_verify(argv[1], NULL, NULL, &info, &err);

        snprintf(info.path, sizeof(info.path), "%s", argv[1]);
        one(&c, &info, rc, err.text);
    } else if (ckpt_each(argv[1], one, &c, &err) < 0) {
        fprintf(stderr, "trainerctl: %s\n", err.text);
        return CTL_FAILED;
    }
    if (c.good + c.bad == 0)
        fprintf(
            stderr,
            "trainerctl: '%s' has no checkpoint (step-*); expected checkpoint.directory of a job\n",
            argv[1]);
    printf("%u good, %u bad\n", c.good, c.bad);
    return c.bad == 0 && c.good > 0 ? CTL_OK : CTL_FAILED;
}
