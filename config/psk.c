/* SPDX-License-Identifier: Apache-2.0 */
/* The file of pre-shared keys. Any thread. */
#include "config/psk.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX 4096
#define FILE_HEAD                                                                                  \
	"# A key of a PeerCache cluster: cluster.psk_file of all its engines. Keep it secret.\n"

__attribute__((format(printf, 3, 4))) static int refused(
	const char *path, char why[PSK_WHY_BYTES], const char *format, ...)
{
	int used = snprintf(why, PSK_WHY_BYTES, "cluster.psk_file %.150s: ", path);
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why + used, PSK_WHY_BYTES - (size_t)used, format, arguments);
	va_end(arguments);
	return -EINVAL;
}

static void key_number(struct psk *key)
{
	static const char what[] = "peercache psk id";
	uint8_t text[sizeof(what) + PSK_BYTES], hash[SHA256_DIGEST_LENGTH];

	memcpy(text, what, sizeof(what));
	memcpy(text + sizeof(what), key->bytes, PSK_BYTES);
	SHA256(text, sizeof(text), hash);
	memcpy(&key->id, hash, sizeof(key->id));
	key->id |= 2; /* 0 and 1 are no numbers of keys */
	OPENSSL_cleanse(text, sizeof(text));
}

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool key_parse(const char *word, size_t length, struct psk *ret)
{
	if (length != 2 * PSK_BYTES)
		return false;
	for (unsigned i = 0; i < PSK_BYTES; i++) {
		int high = digit(word[2 * i]), low = digit(word[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		ret->bytes[i] = (uint8_t)(high << 4 | low);
	}
	key_number(ret);
	return true;
}

static int keys_parse(const char *path, const char *text, struct psk_file *ret, char *why)
{
	unsigned line = 0;

	ret->count = 0;
	for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
		const char *word = at + strspn(at, " \t\r");
		size_t length = strcspn(word, " \t\r\n#");

		line++;
		if (!length)
			continue;
		if (ret->count == PSK_FILE_KEYS)
			return refused(path, why,
				"line %u: a third key; take those out that no engine dials with",
				line);
		if (!key_parse(word, length, &ret->key[ret->count]))
			return refused(path, why,
				"line %u is no key, which has %u digits 0-9 and a-f: peercachectl keygen makes one",
				line, 2 * PSK_BYTES);
		ret->count++;
	}
	if (!ret->count)
		return refused(
			path, why, "there is no key in it: peercachectl keygen makes the file");
	return 0;
}

static bool version_same(const struct psk_version *a, const struct psk_version *b)
{
	return a->device == b->device && a->number == b->number && a->bytes == b->bytes &&
	       a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

static int file_check(const char *path, const struct stat *st, char *why)
{
	if (!S_ISREG(st->st_mode))
		return refused(path, why, "it is no regular file");
	if (st->st_uid != 0 && st->st_uid != geteuid())
		return refused(path, why,
			"user %u owns it, and could read and change it: chown it to the user of the engine",
			(unsigned)st->st_uid);
	if (st->st_mode & 027)
		return refused(path, why,
			"its mode is %04o, so others can read or change it: chmod 600 or 640 it",
			(unsigned)st->st_mode & 07777);
	if (st->st_size > FILE_BYTES_MAX)
		return refused(path, why, "it has more than %u bytes", FILE_BYTES_MAX);
	return 0;
}

int psk_file_read(const char *path, struct psk_file *ret, char why[PSK_WHY_BYTES])
{
	int status, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct psk_version found;
	char text[FILE_BYTES_MAX + 1];
	struct stat st;
	ssize_t bytes;

	if (fd < 0 || fstat(fd, &st) < 0) {
		status = -errno;
		refused(path, why, "%s", strerror(errno));
		if (fd >= 0)
			close(fd);
		return status;
	}
	found = (struct psk_version){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
	status = version_same(&found, &ret->version) ? 1 : file_check(path, &st, why);
	if (status == 0) {
		bytes = read(fd, text, FILE_BYTES_MAX);
		text[bytes > 0 ? bytes : 0] = '\0';
		status = keys_parse(path, text, ret, why);
		OPENSSL_cleanse(text, sizeof(text));
		ret->version = found;
	}
	close(fd);
	return status;
}

uint64_t psk_file_make(const char *path)
{
	char text[sizeof(FILE_HEAD) + 2 * PSK_BYTES + 1] = FILE_HEAD;
	size_t bytes = strlen(text);
	struct psk key;
	int fd, error;

	if (getrandom(key.bytes, PSK_BYTES, 0) != PSK_BYTES)
		return 0;
	key_number(&key);
	for (unsigned i = 0; i < PSK_BYTES; i++)
		bytes += (size_t)snprintf(text + bytes, sizeof(text) - bytes, "%02x", key.bytes[i]);
	text[bytes++] = '\n';
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	error = fd < 0 ? errno : write(fd, text, bytes) == (ssize_t)bytes ? 0 : EIO;
	if (fd >= 0 && close(fd) < 0 && !error)
		error = errno;
	OPENSSL_cleanse(text, sizeof(text));
	OPENSSL_cleanse(key.bytes, sizeof(key.bytes));
	errno = error;
	return error ? 0 : key.id;
}
