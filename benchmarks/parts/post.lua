-- Chat requests of 3.4 kB; each ends in a user message that no other has, so that nothing can be answered or stored from before.
local stream, run = "false", "0"
local system = string.rep("You are a careful coding agent. ", 53)
local user = string.rep("Please look at this file and mend it. ", 41)
local counter = 0
local headers = { ["content-type"] = "application/json", ["x-reef-scenario"] = "default", ["x-reef-session"] = "bench" }

function init(args)
  stream, run = args[1], args[2]
  headers["authorization"] = "Bearer " .. args[3]
end

function request()
  counter = counter + 1
  local body = '{"model": "m", "messages": [{"role": "system", "content": "' .. system
    .. '"}, {"role": "user", "content": "' .. run .. "/" .. counter .. " " .. user .. '"}], "stream": ' .. stream .. "}"
  return wrk.format("POST", "/v1/chat/completions", headers, body)
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format('RESULT {"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "errors": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
