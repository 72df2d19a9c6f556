/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of PeerCache 0.8.4, captured from its RpcClient without and with msgpack. */
#ifndef TESTS_FORMER_FRAMES_H
#define TESTS_FORMER_FRAMES_H

#include <stddef.h>

struct former_frame {
	const char *bytes;
	size_t count;
};
#define FRAME(text)                                                                                \
	{                                                                                          \
		text, sizeof(text) - 1                                                             \
	}

static const struct former_frame former_json[] = {
	FRAME("\0\0\0\xa9[\"register\", {\"node\": {\"node_id\": \"10.0.0.5-1a2b\", \"control_host\": \"10.0.0.5\", \"control_port\": 40123, \"rdma_host\": \"10.0.0.5\", \"rdma_port\": 40124, \"role\": \"inference\"}}]"),
	FRAME("\0\0\0+[\"heartbeat\", {\"node_id\": \"10.0.0.5-1a2b\"}]"),
	FRAME("\0\0\0\x0f[\"members\", {}]"),
	FRAME("\0\0\0,[\"deregister\", {\"node_id\": \"10.0.0.5-1a2b\"}]")};
static const struct former_frame former_msgpack[] = {
	FRAME("\0\0\0|\x92\xa8register\x81\xa4node\x86\xa7node_id\xad"
	      "10.0.0.5-1a2b\xac"
	      "control_host\xa8"
	      "10.0.0.5\xac"
	      "control_port\xcd\x9c\xbb\xa9rdma_host\xa8"
	      "10.0.0.5\xa9rdma_port\xcd\x9c\xbc\xa4role\xa9inference"),
	FRAME("\0\0\0\"\x92\xa9heartbeat\x81\xa7node_id\xad"
	      "10.0.0.5-1a2b"),
	FRAME("\0\0\0\n\x92\xa7members\x80"),
	FRAME("\0\0\0#\x92\xaa"
	      "deregister\x81\xa7node_id\xad"
	      "10.0.0.5-1a2b")};

#endif
