/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of sd_notify(3) messages. The bytes lie at the end of an allocation of their
 * length, so that a sanitizer sees a read behind them. What is accepted must be what a second,
 * simple reading of the lines finds. Runs with libFuzzer when built for it; otherwise main()
 * replays a small corpus: whole, cut short, and with bytes changed. One thread.
 */
#include <string.h>
#include <time.h>

#include "engine/keeper/notify.h"
#include "tests/fuzz/require.h"

static unsigned long accepted, named, refused;

/*
 * Finds the line `field`, or with `prefix` a line that starts with it. Works on a copy that ends
 * with a zero byte, with the functions of the C library. Returns its text or NULL.
 */
static const char *line_find(const uint8_t *data, size_t size, const char *field, bool prefix)
{
	static char copy[NOTIFY_BYTES_MAX + 1];
	const char *last = NULL;

	memcpy(copy, data, size);
	copy[size] = '\0';
	for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n"))
		if (prefix ? !strncmp(line, field, strlen(field)) : !strcmp(line, field))
			last = line;
	return last;
}

static void check(const uint8_t *data, size_t size, const struct notify_message *m)
{
	const char *name = line_find(data, size, "FDNAME=", true);

	require(!memchr(data, '\0', size));
	require(name ? !strcmp(name + strlen("FDNAME="), m->name) : !m->name[0]);
	require(!m->name[0] || notify_name_valid(m->name, strlen(m->name)));
	require(!strchr(m->name, ':') && !strchr(m->name, '\n'));
	require(m->ready == !!line_find(data, size, "READY=1", false));
	require(m->store == !!line_find(data, size, "FDSTORE=1", false));
	require(m->remove == !!line_find(data, size, "FDSTOREREMOVE=1", false));
	require(m->barrier == !!line_find(data, size, "BARRIER=1", false));
	require(!m->barrier || !(m->ready || m->store || m->remove || m->name[0]));
	require(!m->remove || !m->store);
	require(m->name[0] || !(m->remove || m->store));
	named += m->name[0] != '\0';
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct notify_message message;
	const char *why = NULL;
	char *text;

	if (size > NOTIFY_BYTES_MAX)
		size = NOTIFY_BYTES_MAX; /* notify_receive() hands over no more */
	text = malloc(size ? size : 1);
	if (!text)
		abort();
	memcpy(text, data, size);
	memset(&message, 0xa5, sizeof(message));
	if (notify_parse(text, size, &message, &why) == 0) {
		accepted++;
		require(!why);
		check(data, size, &message);
	} else {
		refused++;
		require(why && *why);
		require((uint8_t)message.name[0] == 0xa5); /* outputs are untouched */
	}
	free(text);
	return 0;
}

#ifndef FUZZ_LIBFUZZER

/* Replays the corpus. The environment variable SEED repeats the run that printed it. */
int main(void)
{
	static const char *const corpus[] = {
		"READY=1",
		"READY=1\nSTATUS=serving",
		"FDSTORE=1\nFDNAME=pool0\nFDPOLL=0",
		"FDSTORE=1",
		"FDSTOREREMOVE=1\nFDNAME=state",
		"FDSTOREREMOVE=1",
		"BARRIER=1",
		"BARRIER=1\n",
		"\nBARRIER=1",
		"FDNAME=a\nFDNAME=b",
		"FDNAME=a:b\nFDSTORE=1",
		"\n\n\n",
		"",
	};
	static const char likely[] = "\n\0=1:a \x7f\xff";
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);
	uint8_t changed[512];

	printf("SEED=%u\n", seed);
	srandom(seed);
	for (size_t bytes = NOTIFY_NAME_BYTES - 3; bytes < NOTIFY_NAME_BYTES + 3; bytes++) {
		memset(changed, 'n', sizeof(changed));
		memcpy(changed, "FDNAME=", 7);
		LLVMFuzzerTestOneInput(changed, 7 + bytes);
	}
	for (unsigned c = 0; c < sizeof(corpus) / sizeof(corpus[0]); c++) {
		size_t bytes = strlen(corpus[c]);

		for (size_t cut = 0; cut <= bytes; cut++)
			LLVMFuzzerTestOneInput((const uint8_t *)corpus[c], cut);
		for (unsigned round = 0; bytes && round < 20000; round++) {
			memcpy(changed, corpus[c], bytes);
			for (unsigned n = (unsigned)random() % 4; n < 4; n++)
				changed[(size_t)random() % bytes] =
					random() % 4
						? (uint8_t)likely[(size_t)random() % sizeof(likely)]
						: (uint8_t)random();
			LLVMFuzzerTestOneInput(changed, bytes);
		}
	}
	printf("%lu messages accepted, %lu of them with a name, %lu refused\n", accepted, named,
		refused);
	return accepted && named && refused ? 0 : 1;
}

#endif
