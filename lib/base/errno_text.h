/* errno_text.h - the description of an errno value, for messages. */
#ifndef BASE_ERRNO_TEXT_H
#define BASE_ERRNO_TEXT_H

/* Like strerror(), but thread-safe. The text belongs to the calling thread and is valid until its
 * next call; never NULL. */
const char *errno_text(int errnum);

#endif
