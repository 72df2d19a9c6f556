/* SPDX-License-Identifier: Apache-2.0 */
/* The file of pre-shared keys. Any thread. */
#include "config/psk.h"
#include "config/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
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
		const char *word = at + strspn(at, " \t\r"), *rest;
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
		rest = word + length + strspn(word + length, " \t\r");
		if (*rest && *rest != '\n' && *rest != '#')
			return refused(path, why, "line %u: each key has a line of its own", line);
		ret->count++;
	}
	if (!ret->count)
		return refused(
			path, why, "there is no key in it: peercachectl keygen makes the file");
	return 0;
}

int psk_file_read(const char *path, struct psk_file *ret, char why[PSK_WHY_BYTES])
{
	char text[FILE_BYTES_MAX + 1];
	const char *wrong;
	int bytes = secret_file_read(path, text, FILE_BYTES_MAX, &wrong), status;

	if (bytes < 0) {
		refused(path, why, "%s", wrong);
		return bytes;
	}
	text[bytes] = '\0';
	status = keys_parse(path, text, ret, why);
	OPENSSL_cleanse(text, sizeof(text));
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
