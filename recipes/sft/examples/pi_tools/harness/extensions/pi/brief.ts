import type { ExtensionAPI } from "@earendil-works/pi-coding-agent";

export default function (pi: ExtensionAPI) {
	// Pi's own system prompt has some 550 tokens even with one tool; a whole session with this one has some 170.
	pi.on("before_agent_start", () => ({ systemPrompt: "You work on files. Write dates as YYYY-MM-DD." }));
	// Pi asks for room for 16,384 tokens, and vLLM refuses more than the whole of its context: let it give what it has.
	pi.on("before_provider_request", (event) => {
		const { max_completion_tokens: _, ...payload } = event.payload as Record<string, unknown>;
		return payload;
	});
}
