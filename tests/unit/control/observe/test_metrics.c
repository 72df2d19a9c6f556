/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c over its real thread and real sockets: what each path answers, from which snapshot, an
 * address or port that cannot be had, and the end while clients are connected. See metrics_world.h.
 */
#include <dlfcn.h>
#include <netdb.h>

#include "tests/unit/control/observe/metrics_world.h"

/* ---- answers --------------------------------------------------------------------------------- */

static void each_path_answers_with_its_type(void **state)
{
	static const struct {
		const char *path, *type;
	} paths[] = {
		{"/metrics", "text/plain; version=0.0.4; charset=utf-8"},
		{"/metrics?x=y", "text/plain; version=0.0.4; charset=utf-8"},
		{"/api/status", "application/json"},
		{"/api/history", "application/json"},
		{"/healthz", "text/plain; charset=utf-8"},
		{"/readyz", "text/plain; charset=utf-8"},
		{"/", "text/html; charset=utf-8"},
		{"/dashboard", "text/html; charset=utf-8"},
		{"/index.html", "text/html; charset=utf-8"},
	};
	char type[128];

	serve();
	for (unsigned i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		char *text = ask(AF_INET, paths[i].path);

		print_message("%s\n", paths[i].path);
		assert_true(body(text, 200)[0] != '\0');
		snprintf(type, sizeof(type), "\r\nContent-Type: %s\r\n", paths[i].type);
		assert_non_null(strstr(text, type));
		if (strstr(paths[i].type, "html"))
			assert_non_null(
				strstr(text, "Content-Security-Policy: default-src 'none'"));
		free(text);
	}
	for (unsigned i = 0; i < 3; i++) {
		static const char *const wrong[] = {"/metric", "/metrics/", "/api"};

		line(wrong[i], 404,
			"not here; try / /metrics /healthz /readyz /api/status /api/history /api/cluster\n");
	}
}

static void without_the_dashboard_only_metrics_and_probes_answer(void **state)
{
	static const char *const gone[] = {"/", "/dashboard", "/index.html", "/api/status",
		"/api/history", "/api/cluster", "/x"};
	char *text;

	serve();
	settings.metrics_dashboard = 0;
	for (unsigned i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
		line(gone[i], 404,
			"not here; try /metrics /healthz /readyz; metrics.dashboard = no\n");
	text = ask(AF_INET, "/metrics");
	assert_true(body(text, 200)[0] != '\0');
	free(text);
	line("/readyz", 200, "ready\n");
	line("/healthz", 200, "ok\n");
	snprintf(settings.engine_name, sizeof(settings.engine_name), "a name");
	line("/get_all_segments", 200, "a name\n"); /* SGLang waits while the text is empty */
	settings.metrics_dashboard = 1;
}

static void an_engine_that_is_not_ready_answers_503(void **state)
{
	serve();
	line("/readyz", 200, "ready\n");
	line("/healthz", 200, "ok\n");
	settings.metrics_ready_members = 4; /* the setting is read at each request */
	line("/readyz", 503, "3 of 4 members are up (metrics.ready_members)\n");
	settings.metrics_ready_members = 1;
	sample.stopping = true;
	publish();
	line("/readyz", 503, "the engine is stopping\n");
	line("/healthz", 200, "ok\n");
}

/* Nothing is published for a while: the texts are made again, with the age of this moment. */
static void a_blocked_control_plane_is_told(void **state)
{
	char *text;

	serve();
	sample.taken_ns = clock_now_ns() - HEALTH_BLOCKED_NS - 1000000000;
	*snapshots_writing(engine.snapshots) = sample;
	snapshots_publish(engine.snapshots);
	line("/readyz", 503, "the control plane is blocked for 2 s\n");
	line("/healthz", 200, "ok\n");
	text = ask(AF_INET, "/api/status");
	assert_non_null(strstr(body(text, 200), "\"worst\":\"critical\""));
	assert_non_null(strstr(text, "{\"id\":\"loop_blocked\",\"severity\":\"critical\","));
	free(text);
	text = ask(AF_INET, "/metrics");
	assert_non_null(strstr(body(text, 200), "findings{kind=\"loop_blocked\"} 1\n"));
	free(text);
	sample.taken_ns = clock_now_ns() - 5 * HEALTH_BLOCKED_NS;
	*snapshots_writing(engine.snapshots) = sample;
	snapshots_publish(engine.snapshots);
	line("/healthz", 503, "the control plane is blocked\n");
}

/* What was rendered in time is not served later as if it were still so. */
static void a_status_that_was_kept_is_not_served_when_it_is_old(void **state)
{
	char *text = NULL;

	serve();
	do { /* again if the machine was too slow to ask in time */
		free(text);
		sample.taken_ns = clock_now_ns() - HEALTH_BLOCKED_NS + 400000000;
		*snapshots_writing(engine.snapshots) = sample;
		snapshots_publish(engine.snapshots);
		text = ask(AF_INET, "/metrics");
		assert_non_null(body(text, 200));
		free(text);
		text = ask(AF_INET, "/api/status");
	} while (!strstr(body(text, 200), "\"worst\":\"ok\""));
	do {
		free(text);
		text = ask(AF_INET, "/readyz");
		assert_non_null(text);
	} while (strstr(text, " 200 OK\r\n"));
	free(text);
	text = ask(AF_INET, "/api/status");
	assert_non_null(strstr(body(text, 200), "\"worst\":\"critical\""));
	free(text);
	text = ask(AF_INET, "/metrics");
	assert_non_null(strstr(body(text, 200), "findings{kind=\"loop_blocked\"} 1\n"));
	free(text);
}

static void answers_are_of_the_newest_snapshot(void **state)
{
	char expected[64];

	serve();
	for (unsigned i = 1; i <= 20; i++) {
		char *text;

		sample.keys = i * 1000;
		publish();
		text = ask(AF_INET, "/metrics");
		snprintf(expected, sizeof(expected), "\npeercache_pages %u\n", i * 1000);
		assert_non_null(strstr(body(text, 200), expected));
		free(text);
	}
}

static void counters_of_the_last_seconds_are_findings(void **state)
{
	char *text;

	serve();
	line("/healthz", 200, "ok\n"); /* the thread has seen the first snapshot */
	sample.rail[0].counter[COUNTER_reads_failed] += 5;
	publish();
	text = ask(AF_INET, "/api/status");
	assert_non_null(strstr(body(text, 200), "\"text\":\"5 READs failed in the last 10 s\""));
	free(text);
}

static void the_status_is_json_whatever_the_names_are(void **state)
{
	char *text;

	strcpy(sample.member[1].name, "<img src=x onerror=\"1\">\\\n\x01\x7f\xff");
	sample.member[1].state = SNAPSHOT_DOWN;
	serve();
	text = ask(AF_INET, "/api/status");
	python_expect("status",
		"f[0][\"id\"]==\"member_down\" and \"<img\" in f[0][\"text\"] and d[\"health\"][\"worst\"]==\"warning\" and 0<=d[\"age_ms\"]<600000 and d[\"calls\"][\"get\"][\"batches\"]==2 and d[\"members\"][1][\"state\"]==\"down\"",
		body(text, 200), strlen(body(text, 200)));
	free(text);
}

static void old_names_are_there_on_demand(void **state)
{
	char *text;

	settings.metrics_compat = 1;
	serve();
	text = ask(AF_INET, "/metrics");
	assert_non_null(
		strstr(body(text, 200), "\npeercache_read_requests_total{node=\"host:1\"} 20\n"));
	free(text);
}

/* ---- many readers while the control plane publishes ------------------------------------------ */

enum { READERS = 8, READS = 40 };

static void *read_all(void *context)
{
	unsigned long last = 0;

	for (unsigned i = 0; i < READS; i++) {
		char *text = ask(AF_INET, i % 4 ? "/metrics" : "/api/status");
		const char *start = text ? strstr(text, "\r\n\r\n") : NULL;
		const char *length = text ? strstr(text, "Content-Length: ") : NULL;
		const char *pages = start ? strstr(start, "\npeercache_pages ") : NULL;
		unsigned long now = pages ? strtoul(pages + 17, NULL, 10) : last;

		/* Whole, and never older than the last one. */
		if (!start || !length || strtoul(length + 16, NULL, 10) != strlen(start + 4) ||
			now < last || (i % 4 && !pages))
			context = NULL;
		last = now;
		free(text);
	}
	return context;
}

static void readers_get_whole_answers_while_snapshots_change(void **state)
{
	pthread_t thread[READERS];
	void *rc;

	serve();
	for (unsigned i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, read_all, &engine), 0);
	for (unsigned i = 0; i < READERS; i++) {
		while (pthread_tryjoin_np(thread[i], &rc) == EBUSY) {
			sample.keys++;
			publish();
		}
		assert_non_null(rc);
	}
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* The engine runs without metrics, or does not start if the port was given. The log says why. */
static void refused(const char *why)
{
	char log[1024] = "", err[256];
	struct settings plain = settings;

	if (why) {
		snprintf(err, sizeof(err), "%u", (unsigned)settings.metrics_port);
		assert_int_equal(
			settings_set(&settings, "metrics", "port", err, err, sizeof(err)), 0);
		log_test_capture(log, sizeof(log));
		assert_true(begin() < 0);
		log_test_capture(NULL, 0);
		assert_non_null(strstr(log, "error"));
		assert_non_null(strstr(log, why));
		assert_int_equal(entries("/proc/self/fd"), files);
		settings = plain;
		log[0] = '\0';
	}
	log_test_capture(log, sizeof(log));
	assert_int_equal(begin(), 0);
	log_test_capture(NULL, 0);
	print_message("%s", log);
	assert_null(engine.metrics);
	threads_become(threads_alone);
	assert_int_equal(entries("/proc/self/fd"), files);
	if (!why) {
		assert_string_equal(log, "");
		return;
	}
	assert_non_null(strstr(log, "warn"));
	assert_non_null(strstr(log, why));
	assert_non_null(strstr(log, "no metrics and no dashboard"));
}

static void a_port_that_is_taken_stops_no_engine(void **state)
{
	uint16_t port = 0;
	int fd = bound(AF_INET, &port);

	settings.metrics_port = port;
	files++;
	assert_int_equal(listen(fd, 1), 0);
	refused("Address already in use");
	close(fd);
}

/*
 * Two engines that start at the same moment may both bind the port, because neither listens yet:
 * for the second one listen() fails.
 */
static void a_port_that_another_takes_meanwhile_stops_no_engine(void **state)
{
	uint16_t port = 0;

	rival = bound(AF_INET, &port);
	settings.metrics_port = port;
	files++;
	refused("Address already in use");
	close(rival);
	rival = -1;
}

static void addresses_that_cannot_be_had_stop_no_engine(void **state)
{
	strcpy(settings.metrics_address, "a..b");
	refused("(metrics.address): ");
	strcpy(settings.metrics_address, "192.0.2.1");
	refused("192.0.2.1 port ");
	settings.metrics_address[0] = '\0';
	strcpy(settings.cluster_address, "c..d");
	refused("c..d port ");
}

/* Stands for a resolver: "two" has an address that is not of this host, then one that is. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
	struct addrinfo **ret_found)
{
	int (*resolve)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
	void *found = dlsym(RTLD_NEXT, "getaddrinfo");
	int rc;

	memcpy(&resolve, &found, sizeof(resolve));
	if (!host || strcmp(host, "two"))
		return resolve(host, port, hints, ret_found);
	rc = resolve("192.0.2.1", port, hints, ret_found);
	return rc ? rc : resolve("127.0.0.1", port, hints, &(*ret_found)->ai_next);
}

static void the_first_address_of_a_name_that_can_be_had_is_served(void **state)
{
	uint16_t port = 0;
	char *text;

	strcpy(settings.metrics_address, "two");
	serve();
	text = ask(AF_INET, "/healthz");
	assert_string_equal(body(text, 200), "ok\n");
	free(text);
	metrics_close(&engine);
	rival = bound(AF_INET, &port);
	settings.metrics_port = port;
	files = entries("/proc/self/fd");
	refused("two port ");
	close(rival);
	rival = -1;
}

static void port_0_listens_nowhere(void **state)
{
	settings.metrics_port = 0;
	refused(NULL);
}

static void an_address_of_ipv6_is_served(void **state)
{
	char *text;

	settings.metrics_port = free_port(AF_INET6);
	strcpy(settings.metrics_address, "::1");
	serve();
	text = ask(AF_INET6, "/healthz");
	assert_string_equal(body(text, 200), "ok\n");
	free(text);
	assert_int_equal(dial(AF_INET), -1); /* that address alone */
}

/* ---- the end --------------------------------------------------------------------------------- */

static void the_end_closes_clients_in_every_state(void **state)
{
	static const char *const sent[] = {"", "GET / HT", "GET /metrics HTTP/1.1\r\n\r\n", "PUT "};
	char text[4096];
	int fd[40];

	serve();
	threads_become(threads_alone + 1);
	for (unsigned i = 0; i < 40; i++) {
		fd[i] = dial(AF_INET);
		assert_true(fd[i] >= 0);
		assert_true(send(fd[i], sent[i % 4], strlen(sent[i % 4]), MSG_NOSIGNAL) >= 0);
	}
	line("/healthz", 200, "ok\n"); /* the connections before this one were taken */
	metrics_close(&engine);
	assert_null(engine.metrics);
	threads_become(threads_alone);
	for (unsigned i = 0; i < 40; i++) {
		ssize_t n;

		while ((n = recv(fd[i], text, sizeof(text), 0)) > 0)
			continue;
		assert_true(n == 0 || errno == ECONNRESET);
		close(fd[i]);
	}
	assert_int_equal(entries("/proc/self/fd"), files);
	assert_int_equal(dial(AF_INET), -1);
	metrics_close(&engine); /* once more: nothing to close */
	serve();                /* the port is free at once */
	line("/healthz", 200, "ok\n");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(each_path_answers_with_its_type),
		TEST(without_the_dashboard_only_metrics_and_probes_answer),
		TEST(an_engine_that_is_not_ready_answers_503),
		TEST(a_blocked_control_plane_is_told),
		TEST(a_status_that_was_kept_is_not_served_when_it_is_old),
		TEST(answers_are_of_the_newest_snapshot),
		TEST(counters_of_the_last_seconds_are_findings),
		TEST(the_status_is_json_whatever_the_names_are),
		TEST(old_names_are_there_on_demand),
		TEST(readers_get_whole_answers_while_snapshots_change),
		TEST(a_port_that_is_taken_stops_no_engine),
		TEST(a_port_that_another_takes_meanwhile_stops_no_engine),
		TEST(addresses_that_cannot_be_had_stop_no_engine),
		TEST(the_first_address_of_a_name_that_can_be_had_is_served),
		TEST(port_0_listens_nowhere),
		TEST(an_address_of_ipv6_is_served),
		TEST(the_end_closes_clients_in_every_state),
	};

	return cmocka_run_group_tests(tests, setup_all, NULL);
}
