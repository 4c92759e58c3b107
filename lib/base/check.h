/* check.h - our own mistakes stop the program, in release builds too. An error is for anything
 * the world can do; CHECK is for what only a wrong program can do. */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0))                                                          \
            check_failed(#cond, __FILE__, __LINE__, __func__);                                     \
    } while (0)

void check_failed(const char *cond, const char *file, int line, const char *func)
    __attribute__((noreturn));

#define COUNT_OF(array_) (sizeof(array_) / sizeof((array_)[0]))

#endif
